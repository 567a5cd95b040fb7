# Blocks headed `{public} MODULE`: each line a name of the module, documented from its docstring.

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]

_BLOCK = re.compile(r"^```\{public\} (?P<module>[\w.]+)\n(?P<names>.*?)^```$", re.MULTILINE | re.DOTALL)

# Whose members are not diskq's to explain.
_OTHERS = "object, tuple, int, BaseException"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", expand)
    return {"parallel_read_safe": True}


def expand(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = _BLOCK.sub(lambda found: _directives(found["module"], found["names"].split()), source[0])


def _directives(module: str, names: list[str]) -> str:
    home = importlib.import_module(module)
    lines = [line for name in names for line in _directive(module, name, getattr(home, name))]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def _directive(module: str, name: str, of: Any) -> list[str]:
    # An opener is a class that is called as a function, and is shown as one, with each option in its
    # docstring.
    if not inspect.isclass(of) or name.startswith("open_"):
        return [f".. {'autofunction' if callable(of) else 'autodata'}:: {module}.{name}", ""]
    if issubclass(of, BaseException):
        return [f".. autoexception:: {module}.{name}", "   :show-inheritance:", ""]
    head = [f".. autoclass:: {module}.{name}", f"   :inherited-members: {_OTHERS}"]
    constructor = vars(of).get("__init__")
    if inspect.isfunction(constructor) and constructor.__doc__:
        head.append("   :class-doc-from: both")  # what an engine's options are is said by its constructor
    is_compiled = of.__module__.startswith("diskq._native.")  # what is handed over: fields, and no methods
    is_data = dataclasses.is_dataclass(of) or issubclass(of, tuple) or is_compiled
    return [*head, "   :undoc-members:", ""] if is_data else [*head, ""]  # a field's name may say it all
