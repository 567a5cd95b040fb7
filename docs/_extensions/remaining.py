# The toctree of the first page ends with every page that no other line of it names: a new page is on
# the site because it is there.

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["setup"]

_PLACE = "<remaining>"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill_in)
    return {"parallel_read_safe": True}


def fill_in(app: Sphinx, name: str, source: list[str]) -> None:
    """In the first page, the pages of the top directory that it does not name, in place of the word."""
    if name != app.config.root_doc:
        return
    named = {name, *re.findall(r"^[\w/]+$", source[0], re.MULTILINE)}
    pages = sorted(page for page in app.env.found_docs if "/" not in page)
    source[0] = source[0].replace(_PLACE, "\n".join(page for page in pages if page not in named))
