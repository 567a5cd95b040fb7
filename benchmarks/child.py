"""One measurement, in this process and no other: python -m benchmarks.child MODULE WORK DIRECTORY OPTIONS

Prints one line of JSON: the readings by name ("" where there is one), or what is not installed.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from importlib import import_module


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


if __name__ == "__main__":
    main(*sys.argv[1:])
