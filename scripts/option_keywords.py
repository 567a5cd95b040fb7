"""What type checkers and editors know of the options, made of diskq/options.py.

    python -m scripts.option_keywords        writes it

That is diskq/keywords.py, with a typed dictionary for each class of options. A test compares the file with
what this script would write.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from diskq import options

__all__ = ["option_classes", "options_of", "wanted"]

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
_CODE = re.compile(r"`[^`]+`")


class Option(NamedTuple):
    name: str
    type: str
    default: str
    text: str


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
    parts = [_typed_dictionary(name, kind) for name, kind in classes.items()]
    types = " ".join(option.type for kind in classes.values() for option in options_of(kind))
    imports = ",\n    ".join(sorted(set(re.findall(r"\w+", types)) & vars(options).keys()))
    exported = ",\n    ".join(f'"{name}"' for name in sorted(map(_keywords_of, classes)))
    return (
        f"{_HEADER}from typing import TypedDict\n\n"
        f"from diskq.options import (\n    {imports},\n)\n\n"
        f"__all__ = [\n    {exported},\n]\n" + "".join(parts)
    )


def _typed_dictionary(name: str, kind: type) -> str:
    lines = [
        f"class {_keywords_of(name)}(TypedDict, total=False):",
        f'    """The options of `{name}`."""',
        "",
    ]
    for option in options_of(kind):
        about = _wrapped(f'"""Default: `{option.default}`. {option.text}', WIDTH - 4)
        end = '"""' if len(about[-1]) <= WIDTH - 4 - len('"""') else '\n    """'
        lines += [f"    {option.name}: {option.type}", *(f"    {line}" for line in about)]
        lines[-1] += end
    return "\n\n" + "\n".join([*lines, ""])


def _keywords_of(name: str) -> str:
    return f"{name.removesuffix('Options')}Keywords"


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters; none begins within code."""
    whole = _CODE.sub(lambda code: code[0].replace(" ", "\0"), text.strip())
    under = "  " if text.startswith("- ") else ""
    lines = textwrap.wrap(
        whole, width, subsequent_indent=under, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def wanted() -> dict[Path, str]:
    """The file that this script writes, with the text that it is to have."""
    return {KEYWORDS: keywords()}


def main() -> None:
    for path, text in wanted().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
