# Decoders under libFuzzer, which owns its process and never returns: tests/torture/guided.py starts this, and
# it forks for each. So what is imported is instrumented once, which takes some seconds. Law: an exception is
# written down with its bytes, and the search goes on; only a crash of the process ends it.
#
# `ready` on stdout, when it is. Then a line of JSON on stdin is a decoder to fuzz, and the line that answers
# it is the exit code of that process.

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import atheris

from tests.torture.decoders import Decoder
from tests.torture.findings import what_went_wrong
from tests.torture.mutating import Mutator

INSTRUMENTED = ["diskq", "tests.torture.decoders", "tests.torture.directories"]
OURS = 4  # one change of so many is of the kinds in mutating.py, the others are libFuzzer's


def main() -> None:
    """The argument is the function that has the decoders: MODULE:FUNCTION."""
    logging.getLogger("diskq").setLevel(logging.CRITICAL)
    module, _, function = sys.argv[1].partition(":")
    # Decoders that were imported already are imported again: only what is imported here is instrumented.
    for name in [each for each in sys.modules if each.startswith((*INSTRUMENTED, module))]:
        del sys.modules[name]
    with atheris.instrument_imports(include=[*INSTRUMENTED, module]):
        decoders = getattr(importlib.import_module(module), function)()
    print("ready", flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if child == 0:
            _fuzz(decoders[wanted["name"]], wanted)
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def _fuzz(decoder: Decoder, wanted: dict[str, Any]) -> None:
    """Does not return."""
    log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    mutator = Mutator(decoder.seeds, wanted["seed"])
    known: set[str] = set()

    def one(data: bytes) -> None:
        try:
            decoder.check(data)
        except Exception as failure:
            what = what_went_wrong(failure)
            place = what.split(": ")[0]
            if place not in known:
                known.add(place)
                with Path(wanted["told"]).open("a") as told:
                    told.write(json.dumps({"what": what, "data": data.hex()}) + "\n")

    def change(data: bytes, largest: int, seed: int) -> bytes:
        if seed % OURS == 0:
            return mutator.change(data)[:largest]
        return bytes(atheris.Mutate(data, largest))

    atheris.Setup([sys.argv[0], *wanted["options"]], one, custom_mutator=change)
    atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    main()
