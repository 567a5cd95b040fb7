# Docstrings as autodoc is to read them. Law: they are plain text for readers of the code; what they
# mean by backticks and indentation is told to Sphinx here, and not in them.

from __future__ import annotations

import builtins
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

__all__ = ["setup"]

_CODE = re.compile(r"(?<![`:\w])`([^`\n]+)`(?!`)")
_MARKS = re.compile(r"(?<![\\`\w])([*|])(?=\w)")
_LABEL = re.compile(r"(\w)_(?=\W|$)")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", as_markup)
    app.connect("doctree-read", leave_builtins)
    return {"parallel_read_safe": True}


def as_markup(app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """One pair of backticks is code, an indented stretch is shown as it stands."""
    done: list[str] = []
    is_block = False
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        is_indented = line.startswith(" ")
        if is_indented and not is_block:
            if before.strip():
                done.append("")
            done += ["::", ""]
            is_block = True
        elif line.strip() and not is_indented:
            if is_block and before.strip():
                done.append("")
            is_block = False
        done.append(line if is_block else _prose(line))
    lines[:] = done


def _prose(line: str) -> str:
    parts = re.split(r"(`+[^`]+`+)", line)
    return "".join(
        _CODE.sub(r"``\1``", part) if number % 2 else _LABEL.sub(r"\1\\_", _MARKS.sub(r"\\\1", part))
        for number, part in enumerate(parts)
    )


def leave_builtins(app: Sphinx, document: nodes.document) -> None:
    """`bytes` in a signature is Python's, and not one of the attributes that have that name."""
    for reference in list(document.findall(pending_xref)):
        if reference.get("refdomain") == "py" and hasattr(builtins, reference["reftarget"]):
            reference.replace_self(reference.children)
