"""One measurement, in this process and no other: python -m benchmarks.child MODULE WORK DIRECTORY OPTIONS

Prints one line of JSON: the readings by name ("" where there is one), or what is not installed.

`python -m benchmarks.child --forks` imports first what most of them need. Then it reads lines of JSON, [those
four arguments, a file for what is printed, one for the errors], forks a process for each, and prints its exit
code.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import traceback
from importlib import import_module

_WARM: tuple[str, ...] = (
    "trio",
    "benchmarks.works",
    "benchmarks.stream_works",
    "benchmarks.journal_works",
    "benchmarks.priority_works",
)
_WARM += (
    "benchmarks.spool_works",
    "benchmarks.convert_works",
    "benchmarks.verify_works",
    "benchmarks.top_works",
)


def main(module: str, work: str, directory: str, options: str) -> None:
    act = functools.partial(
        getattr(import_module(f"benchmarks.{module}"), work), directory, **json.loads(options)
    )
    try:
        # Without Trio where it is not needed: peers do not pay for its import.
        found = import_module("trio").run(act) if inspect.iscoroutinefunction(act.func) else act()
    except ModuleNotFoundError as missing:
        print(json.dumps({"missing": f"{missing.name} is not installed"}))
        return
    if found and not isinstance(next(iter(found.values())), dict):
        found = {"": found}
    print(json.dumps({"readings": found or {}}))


def fork_for_each_line() -> None:
    for module in _WARM:
        import_module(module)
    for line in sys.stdin:
        arguments, output, errors = json.loads(line)
        child = os.fork()
        if not child:
            status = 1
            try:
                for number, path in ((1, output), (2, errors)):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
                main(*arguments)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(ended), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--forks"]:
        fork_for_each_line()
    else:
        main(*sys.argv[1:])
