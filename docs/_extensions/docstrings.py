# Docstrings as autodoc is to read them. Law: they are plain text for readers of the code; what they
# mean by backticks and indentation is said to Sphinx here, and not in them.

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib
import re
import sys
from typing import Any

from docutils import nodes
from sphinx.addnodes import desc_annotation, desc_signature, pending_xref
from sphinx.application import Sphinx

__all__ = ["setup"]

_CODE = re.compile(r"(?<![`:\w])`([^`\n]+)`(?!`)")
_MARKS = re.compile(r"(?<![\\`\w])([*|])(?=\w)")
_LABEL = re.compile(r"(\w)_(?=\W|$)")
_CONSTANT = re.compile(r"[A-Z_][A-Z0-9_]+")
_LINKED = (nodes.reference, pending_xref, nodes.title, nodes.literal_block, desc_signature)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", as_markup)
    app.connect("doctree-read", leave_builtins)
    app.connect("doctree-read", show_openers)
    app.connect("doctree-read", show_values)
    app.connect("doctree-read", link_errors)
    return {"parallel_read_safe": True}


def as_markup(app: Sphinx, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """One pair of backticks is code, an indented stretch is shown as it stands, except in a list."""
    done: list[str] = []
    is_block = is_list = False
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        is_list = line.startswith("- ") or (is_list and (line.startswith("  ") or not line.strip()))
        is_indented = line.startswith(" ") and not is_list
        if is_indented and not is_block:
            if before.strip():
                done.append("")
            done += [f".. code-block:: {_language(lines[number:])}", ""]
            is_block = True
        elif line.strip() and not is_indented:
            if is_block and before.strip():
                done.append("")
            is_block = False
        done.append(line if is_block else _prose(line))
    lines[:] = done


def _language(lines: list[str]) -> str:
    """Python where the indented stretch at the start of `lines` is Python, otherwise plain text."""
    block = []
    for line in lines:
        if line.strip() and not line.startswith(" "):
            break
        block.append(line[4:])
    try:
        compile("\n".join(block), "a docstring", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    except SyntaxError:
        return "text"
    return "python"


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


def show_openers(app: Sphinx, document: nodes.document) -> None:
    """A class in small letters is used as a function, and is shown as one."""
    for signature in document.findall(desc_signature):
        shown = signature.next_node(desc_annotation)
        if shown is not None and shown.astext().strip() == "class" and signature["fullname"].islower():
            shown.parent.remove(shown)


# --- default values ---------------------------------------------------------------------------


def show_values(app: Sphinx, document: nodes.document) -> None:
    """A default that is the name of a constant is shown as the constant's value."""
    for signature in document.findall(desc_signature):
        for shown in signature.findall(nodes.inline):
            if "default_value" in shown["classes"]:
                text = shown.astext()
                if (value := _value(signature, shown)) is not None and value != text:
                    shown.replace_self(nodes.inline("", value, classes=shown["classes"]))


def _value(signature: desc_signature, shown: nodes.inline) -> str | None:
    text = shown.astext()
    home: Any = importlib.import_module(signature["module"])
    of = functools.reduce(getattr, signature["fullname"].split("."), home)
    if text == "<factory>":
        parameter = next(iter(shown.parent.findall(nodes.inline))).astext()
        factories = {field.name: field.default_factory for field in dataclasses.fields(of)}
        return f"{getattr(factories[parameter], '__name__', '')}()"
    if not _CONSTANT.fullmatch(text):
        return None
    value = getattr(sys.modules.get(of.__module__), text, None)
    return repr(value) if isinstance(value, int | float | str) else None


# --- errors -----------------------------------------------------------------------------------


def link_errors(app: Sphinx, document: nodes.document) -> None:
    """The name of one of diskq's exceptions leads to its place in the reference, wherever it stands."""
    for text in list(document.findall(nodes.Text)):
        if text.parent is None or _is_within(text, _LINKED):
            continue
        if isinstance(text.parent, nodes.literal):
            if text.astext() in _errors():
                literal = text.parent
                literal.replace_self(_reference(text.astext(), literal.deepcopy()))
            continue
        parts = re.split(_in_prose(), text.astext())
        if len(parts) > 1:
            shown = [
                _reference(part, nodes.Text(part)) if number % 2 else nodes.Text(part)
                for number, part in enumerate(parts)
                if part
            ]
            text.parent.replace(text, shown)


def _reference(name: str, shown: nodes.Node) -> pending_xref:
    return pending_xref(
        "", shown, refdomain="py", reftype="obj", reftarget=f"diskq.{name}", refexplicit=True, refwarn=False
    )


def _is_within(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    above = node.parent
    while above is not None:
        if isinstance(above, kinds):
            return True
        above = above.parent
    return False


@functools.cache
def _errors() -> frozenset[str]:
    import diskq

    public = {name: getattr(diskq, name) for name in diskq.__all__}
    return frozenset(
        name for name, of in public.items() if isinstance(of, type) and issubclass(of, BaseException)
    )


@functools.cache
def _in_prose() -> re.Pattern[str]:
    """Only names that end in Error: `Permanent` and `Retry` are words, too."""
    names = "|".join(sorted(name for name in _errors() if name.endswith("Error")))
    return re.compile(rf"\b({names})\b")
