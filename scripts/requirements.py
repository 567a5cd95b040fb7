"""Print the requirements of extras in pyproject.toml, one a line: `python scripts/requirements.py cli demo`.

`pip install -r` of these lines brings what an extra needs without installing diskq once more: an editable
install would compile its modules each time, and throw them away. Needs nothing but Python.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def requirements(extras: Iterable[str], project: dict[str, object]) -> Iterator[str]:
    """Give each requirement of `extras` once; for an extra of diskq that is one of them, those of that extra.

    `project` is the table of that name in pyproject.toml. Raises KeyError for an extra that it has not.
    """
    table = project["optional-dependencies"]
    assert isinstance(table, dict)
    itself = re.compile(rf"{re.escape(str(project['name']))}\[([\w,-]+)\]")
    waiting, seen = list(extras), set[str]()
    for extra in waiting:
        for line in table[extra]:
            if own := itself.fullmatch(line):
                waiting += [name for name in own[1].split(",") if name not in waiting]
            elif line not in seen:
                seen.add(line)
                yield line


def main(extras: list[str]) -> int:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    try:
        print(*requirements(extras, project), sep="\n")
    except KeyError as missing:
        print(f"requirements: pyproject.toml has no extra {missing}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
