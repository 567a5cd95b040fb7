"""What type checkers, editors and `help` know of the options, made of diskq/options.py.

    python -m scripts.option_keywords        writes it

That is diskq/keywords.py, with a typed dictionary for each class of options; and the last part of the
docstring of each opener and engine, which lists its options. An opener here is any function that takes
`**changes: Unpack[QueueKeywords]`; it lists the options in its own docstring, or, if it is a constructor
without one, in the docstring of its class. A test compares the files with what this script would write.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from diskq import options

__all__ = ["Opener", "openers", "option_classes", "options_of", "wanted"]

ROOT = Path(__file__).parent.parent
OPTIONS = ROOT / "diskq" / "options.py"
KEYWORDS = ROOT / "diskq" / "keywords.py"
WIDTH = 110

_HEADER = """\
# The options of each kind as keywords: what an opener or an engine takes as `**changes`. Type checkers refuse
# a misspelt one, and editors complete it.
#
# Written by `python -m scripts.option_keywords` from options.py: an option is changed there.

"""
# Keywords that are those of a class of options but for some, which their openers refuse.
PARTS = {"ThreadedSpool": ("SpoolOptions", frozenset({"deliver_timeout"}))}

_UNPACKED = re.compile(r"Unpack\[(\w+)Keywords\]")
_LIST = re.compile(r"\n *Options \(`\w+`\)\..*\Z", re.DOTALL)
_CODE = re.compile(r"`[^`]+`")


class Option(NamedTuple):
    name: str
    type: str
    default: str
    text: str


class Opener(NamedTuple):
    """A function that takes options as keywords."""

    path: Path
    name: str
    """Its qualified name; a class stands for its constructor."""
    options: str
    """The name of its class of options."""
    without: frozenset[str]
    """The options of that class that it refuses."""
    docstring: ast.Constant
    """The docstring that lists them."""


# --- reading options.py ---------------------------------------------------------------------------


def option_classes() -> dict[str, type]:
    """The public classes of options, in the order in which they are defined."""
    return {
        name: value
        for name, value in vars(options).items()
        if name.endswith("Options") and not name.startswith("_") and isinstance(value, type)
    }


def options_of(kind: type) -> Iterator[Option]:
    """The options of a class, those of its bases first."""
    written = _fields()
    for field in dataclasses.fields(kind):
        homes = ((base.__name__, field.name) for base in kind.__mro__)
        yield next(written[home] for home in homes if home in written)


@functools.cache
def _fields() -> dict[tuple[str, str], Option]:
    """Each field, by its class and its name."""
    found = {}
    source = OPTIONS.read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and field.value is not None:
                name = ast.unparse(field.target)
                assert isinstance(below, ast.Expr), f"{node.name}.{name} has no docstring"
                default = ast.get_source_segment(source, field.value)
                text = " ".join(ast.literal_eval(below.value).split())
                found[node.name, name] = Option(
                    name, ast.unparse(field.annotation), _default(str(default)), text
                )
    return found


def _default(text: str) -> str:
    """The default as anybody can write it: without the names that only options.py has."""
    factory = re.fullmatch(r"field\(default_factory=(\w+)\)", text)
    return f"{factory[1]}()" if factory else re.sub(r"\bMIB\b", "1024 * 1024", text)


# --- diskq/keywords.py ----------------------------------------------------------------------------


def keywords() -> str:
    """The text of diskq/keywords.py."""
    classes = option_classes()
    parts = [_typed_dictionary(name, options_of(kind)) for name, kind in classes.items()]
    for prefix, (name, without) in PARTS.items():
        left = [option for option in options_of(classes[name]) if option.name not in without]
        parts.append(_typed_dictionary(name, left, prefix, without))
    types = " ".join(option.type for kind in classes.values() for option in options_of(kind))
    imports = ",\n    ".join(sorted(set(re.findall(r"\w+", types)) & vars(options).keys()))
    prefixes = [*(name.removesuffix("Options") for name in classes), *PARTS]
    exported = ",\n    ".join(sorted(f'"{prefix}Keywords"' for prefix in prefixes))
    return (
        f"{_HEADER}from typing import TypedDict\n\n"
        f"from diskq.options import (\n    {imports},\n)\n\n"
        f"__all__ = [\n    {exported},\n]\n" + "".join(parts)
    )


def _typed_dictionary(
    name: str, options: Iterable[Option], prefix: str = "", without: Iterable[str] = ()
) -> str:
    but = "".join(f", but for `{each}`" for each in sorted(without))
    lines = [
        f"class {prefix or name.removesuffix('Options')}Keywords(TypedDict, total=False):",
        f'    """The options of `{name}`{but}."""',
        "",
    ]
    for option in options:
        about = _wrapped(f'"""Default: `{option.default}`. {option.text}', WIDTH - 4)
        end = '"""' if len(about[-1]) <= WIDTH - 4 - len('"""') else '\n    """'
        lines += [f"    {option.name}: {option.type}", *(f"    {line}" for line in about)]
        lines[-1] += end
    return "\n\n" + "\n".join([*lines, ""])


# --- docstrings -----------------------------------------------------------------------------------


def openers() -> list[Opener]:
    """All that take options as keywords."""
    paths = sorted((ROOT / "diskq").rglob("*.py"))
    return [opener for path in paths for opener in _openers_in(path)]


def _openers_in(path: Path) -> Iterator[Opener]:
    text = path.read_text(encoding="utf-8")
    if _UNPACKED.search(text) is None:
        return
    for node in ast.parse(text).body:
        if isinstance(node, _FUNCTIONS) and (taken := _taken_by(node)):
            yield Opener(path, node.name, *taken, _docstring(node))
        if not isinstance(node, ast.ClassDef):
            continue
        for member in node.body:
            if isinstance(member, _FUNCTIONS) and (taken := _taken_by(member)):
                if member.name == "__init__":
                    docstring = _docstring(member if ast.get_docstring(member) else node)
                    yield Opener(path, node.name, *taken, docstring)
                else:
                    yield Opener(path, f"{node.name}.{member.name}", *taken, _docstring(member))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _taken_by(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> tuple[str, frozenset[str]] | None:
    """The class of options of which it takes keywords, and those that it does not take."""
    annotation = function.args.kwarg and function.args.kwarg.annotation
    taken = _UNPACKED.search(ast.unparse(annotation)) if annotation else None
    return PARTS.get(taken[1], (f"{taken[1]}Options", frozenset())) if taken else None


def _docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Constant:
    first = node.body[0]
    assert isinstance(first, ast.Expr), f"{node.name} has no docstring"
    assert isinstance(first.value, ast.Constant), f"{node.name} has no docstring"
    return first.value


def wanted() -> dict[Path, str]:
    """Each file that this script writes, or a part of it, with the text that it is to have."""
    texts = {KEYWORDS: keywords()}
    # From the end of each file: what is written moves the lines below it.
    for opener in sorted(openers(), key=lambda opener: -opener.docstring.lineno):
        text = texts.get(opener.path) or opener.path.read_text(encoding="utf-8")
        texts[opener.path] = _with_list(text, opener)
    return texts


def _with_list(text: str, opener: Opener) -> str:
    """The text of the opener's file, with its docstring as it is to be."""
    node = opener.docstring
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    source = "".join(lines[node.lineno - 1 : node.end_lineno])
    indent = " " * node.col_offset
    own = _LIST.sub("", source.strip().removeprefix('"""').removesuffix('"""')).rstrip()
    shown = textwrap.indent("\n".join(_option_list(opener, WIDTH - len(indent))), indent)
    lines[node.lineno - 1 : node.end_lineno] = [f'{indent}"""{own}\n\n{shown}\n{indent}"""\n']
    return "".join(lines)


def _option_list(opener: Opener, width: int) -> Iterator[str]:
    """The lines about an opener's options: how they are measured, and each with its default."""
    name = opener.options
    kind = option_classes()[name]
    about = " ".join(str(kind.__doc__).split()).partition(". ")[2]  # after what the options are about
    yield from _wrapped(f"Options (`{name}`). {about}", width)
    yield ""
    for option in options_of(kind):
        if option.name in opener.without:
            continue
        yield from _wrapped(f"- `{option.name}={option.default}`: {option.text}", width)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters; none begins within code."""
    whole = _CODE.sub(lambda code: code[0].replace(" ", "\0"), text.strip())
    under = "  " if text.startswith("- ") else ""
    lines = textwrap.wrap(
        whole, width, subsequent_indent=under, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def main() -> None:
    for path, text in wanted().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
