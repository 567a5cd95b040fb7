# A toctree of the first page ends with every page that no other line names: a new page is on the site
# because it exists.

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]

_PLACE = "<remaining>"
_NAMED = re.compile(r"^(?:.+ <([\w/]+)>|([\w/]+))$", re.MULTILINE)  # `page`, or `Title <page>`


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True}


def fill_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the pages of the top directory that the first page does not name in the place of the word."""
    if name != app.config.root_doc:
        return
    named = {name, *(titled or plain for titled, plain in _NAMED.findall(source[0]))}
    pages = sorted(page for page in app.env.found_docs if "/" not in page)
    source[0] = source[0].replace(_PLACE, "\n".join(page for page in pages if page not in named))
