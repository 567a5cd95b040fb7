# What is right on the repository's own pages, and has no counterpart on the site: links to directories
# and to documents outside of `docs`, and blocks headed with what no highlighter knows.

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

__all__ = ["setup"]

_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)#\s]+)[^)\s]*\)")
_PLAIN = ("hex", "ebnf")  # ours says `3 × byte`, which the ISO's grammar has no sign for


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", unlink)
    for name in _PLAIN:
        app.add_lexer(name, TextLexer)
    return {"parallel_read_safe": True}


def unlink(app: Sphinx, name: str, source: list[str]) -> None:
    """Links that leave the site become their text; those to programs stay, and are downloads."""
    here = Path(app.env.doc2path(name)).parent

    def kept(found: re.Match[str]) -> str:
        target = (here / found["target"]).resolve()
        leaves = not target.is_relative_to(app.srcdir) and (target.is_dir() or target.suffix == ".md")
        return found["text"] if leaves else found[0]

    source[0] = _LINK.sub(kept, source[0])
