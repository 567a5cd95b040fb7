# What is right on the repository's own pages, and needs something else on the site: documents outside of
# `docs`, links to them and to directories, and fences whose word names no lexer.

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pygments.lexer import RegexLexer
from pygments.lexers.special import TextLexer
from pygments.token import Comment, Keyword, Name, Operator, String, Text
from sphinx.application import Sphinx

__all__ = ["setup"]

PAGES = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "benchmarks": "benchmarks/README.md",
    "measured": "benchmarks/results/report.md",
    "lost": "benchmarks/results/torture.md",
}
"""Pages of the site that show a document of the repository. In `docs` such a page is only a link to it."""

_LINK = re.compile(r"(?P<open>!?\[(?P<text>[^\]]*)\])\((?P<target>[^)#\s]+)(?P<rest>[^)\s]*)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(r"[a-z]+:")


class GrammarLexer(RegexLexer):
    """The notation of the format pages: ISO's EBNF, with `3 × byte` for a repetition."""

    name = "Grammar"
    tokens = {  # noqa: RUF012
        "root": [
            (r"\(\*.*?\*\)", Comment),
            (r'"[^"\n]*"|\'[^\'\n]*\'', String),
            (r"^[A-Za-z][\w -]*?(?=\s*=)", Keyword),
            (r"[A-Za-z][\w-]*", Name),
            (r"[=|{}()\[\]×*+?,;…]", Operator),
            (r"\s+", Text),
            (r".", Text),
        ]
    }


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read)
    app.add_lexer("ebnf", GrammarLexer)
    app.add_lexer("hex", TextLexer)
    return {"parallel_read_safe": True}


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """A page with its links as they are on the site; a page of `PAGES` with the text of its document."""
    root, here = Path(app.srcdir).parent, Path(app.env.doc2path(name)).parent
    if name in PAGES:
        document = root / PAGES[name]
        app.env.note_dependency(str(document))
        text, there = document.read_text(encoding="utf-8"), document.parent
    else:
        text, there = source[0], here
    source[0] = _outside_of_fences(text, lambda prose: _LINK.sub(_on_the_site(root, here, there), prose))


def _on_the_site(root: Path, here: Path, there: Path) -> Callable[[re.Match[str]], str]:
    """Replaces a link that is relative to `there` by one that is relative to `here`.

    A link to a document that no page shows, or to a directory, becomes its text. One to any other file
    stays: the site offers it as a download.
    """
    pages = {root / path: root / "docs" / f"{name}.md" for name, path in PAGES.items()}

    def replaced(found: re.Match[str]) -> str:
        if _ELSEWHERE.match(found["target"]):
            return found[0]
        target = Path(os.path.normpath(there / found["target"]))
        target = pages.get(target, target)
        is_shown = target.is_relative_to(root / "docs")
        if not is_shown and (target.is_dir() or target.suffix == ".md"):
            return found["text"]
        return f"{found['open']}({os.path.relpath(target, here)}{found['rest']})"

    return replaced


def _outside_of_fences(text: str, change: Callable[[str], str]) -> str:
    done, end = [], 0
    for fence in _FENCE.finditer(text):
        done += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*done, change(text[end:])])
