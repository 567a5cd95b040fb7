"""A process from which the tortured ones are forked: a case costs a fork, not a start of Python.

    python -m tests.torture.worker SOCKET SYSTEM

Asked in lines of JSON on the descriptor SOCKET; each line is one child, and is answered with its status.
The child says on a file what it does, a line when it is done: `a N` put N has returned, `f N` it has
raised, `b` it begins to take a message, `t N` it has it, `c` it is closed, `x TEXT` something else raised.
It uses no write(2) on that socket, and so leaves the counters of strace alone.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import pickle
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tests.torture.messages import message, number_of
from tests.torture.systems import SYSTEMS, Opened, System, disk

__all__ = ["main", "serve"]


def say(*words: object) -> None:
    """In one write: a line is said, or it is not."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _steps() -> Iterator[float]:
    """An hour forth, a day back, and so on."""
    return itertools.cycle([0.0, 3600.0, -86400.0, 0.5, -1.0, 30 * 86400.0])


def produce(system: System, directory: str, request: dict[str, Any]) -> None:
    first, count, take_every = request["first"], request["count"], request.get("take_every", 0)
    if system.program is not None:
        command = system.program().produce(directory, first, count, take_every)
        os.execv(command[0], command)
    try:
        steps = _steps() if request.get("steps") else None
        assert system.open is not None
        opened = system.open(directory, disk(was_restarted=request.get("restarted", False), steps=steps))
    except Exception as failure:
        say("x", type(failure).__name__, str(failure)[:200].replace("\n", " "))
        os._exit(3)
    for number in range(first, first + count):
        try:
            opened.put(message(number))
        except Exception:
            say("f", number)
            continue
        say("a", number)
        if take_every and number % take_every == 0:
            _take(opened)
    try:
        opened.close()
    except Exception as failure:
        say("x", type(failure).__name__)
        os._exit(4)
    say("c")


def _take(opened: Opened) -> None:
    say("b")
    try:
        body = opened.take()
    except Exception as failure:
        say("x", type(failure).__name__)
        return
    say("t", -1 if body is None else number_of(body))


def consume(system: System, directory: str, request: dict[str, Any]) -> None:
    try:
        if system.program is not None:
            bodies = system.program().read_all(directory)
        else:
            assert system.open is not None
            opened = system.open(directory, disk(was_restarted=request.get("restarted", False)))
            bodies = opened.read_all()
            opened.close()
        answer: Any = [bytes(body) for body in bodies]
    except Exception as failure:
        answer = f"{type(failure).__name__}: {failure}"
    with open(request["answer"], "wb") as file:
        pickle.dump(answer, file)


def _child(system: System, request: dict[str, Any]) -> None:
    signal.alarm(request["limit"])  # whoever hangs, in Python or in C
    out = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.chdir(request["directory"])
    {"produce": produce, "consume": consume}[request["verb"]](system, request["directory"], request)


def serve(system: System, channel: socket.socket) -> None:
    """Fork a child for each line, until there are no more."""
    with channel.makefile("r") as lines:
        for line in lines:
            child = os.fork()
            is_child = child == 0
            if is_child:
                status = 1
                try:
                    _child(system, json.loads(line))
                    status = 0
                finally:
                    os._exit(status)
            channel.sendall(b"%d\n" % child)
            _, status = os.waitpid(child, 0)
            channel.sendall(b"%d\n" % status)


def main(argv: list[str]) -> None:
    logging.disable()
    system = SYSTEMS[argv[1]] if argv[1] in SYSTEMS else _from_module(argv[1])
    if system.program is not None:
        system.program()
    else:
        _warm_up(system)
    gc.collect()
    gc.freeze()
    serve(system, socket.socket(fileno=int(argv[0])))


def _warm_up(system: System) -> None:
    """What is imported when it is first used is imported here, and not in each child."""
    used = [SYSTEMS["queue"], system] if system.is_ours else [system]
    for each in used:
        if each.name == "spool":  # threads do not survive a fork
            import_module("diskq.channels.spool.spool")
            continue
        with tempfile.TemporaryDirectory() as directory:
            assert each.open is not None
            opened = each.open(directory, disk())
            opened.put(message(0))
            opened.read_all()
            opened.close()


def _from_module(place: str) -> System:
    """MODULE:NAME, for the systems of a test."""
    module, _, name = place.partition(":")
    system = getattr(import_module(module), name)
    assert isinstance(system, System)
    return system


if __name__ == "__main__":
    main(sys.argv[1:])
