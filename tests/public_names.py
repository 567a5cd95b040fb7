# The public names of diskq's packages, read from their sources: some need Java or an extra to be imported.

from __future__ import annotations

import ast
from itertools import chain
from pathlib import Path

__all__ = ["public_names"]

ROOT = Path(__file__).parent.parent


def public_names(package: str) -> list[str]:
    """Return what `__all__` of `package` names; if it follows from `_HOMES`, the names in that."""
    path = ROOT / package.replace(".", "/") / "__init__.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            match ast.unparse(node.targets[0]):
                case "_HOMES":
                    return sorted(chain.from_iterable(ast.literal_eval(node.value).values()))
                case "__all__":
                    return list(ast.literal_eval(node.value))
    raise LookupError(path)
