# The documents as a site (`make docs`). Law: nothing is asked of the network, and a warning is an error.
#
# Pages are Markdown, for readers of the repository too. The reference is made from docstrings, and that
# of the command line from the parser itself: neither can say what the code does not.

from __future__ import annotations

import sys
from pathlib import Path

import diskq

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_extensions")]

project = "diskq"
author = "The diskq authors"
project_copyright = author
release = version = diskq.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "commandline",
    "docstrings",
    "publicnames",
    "remaining",
    "repository",
]
exclude_patterns = ["_extensions", "_static", "_templates"]
templates_path = ["_templates"]
highlight_language = "text"  # a fence without a word is only shown
source_suffix = {".md": "markdown"}
nitpicky = False  # types of other libraries lead nowhere without the network

# --- Markdown: headings are anchors as they are on the repository's own pages -----------------

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]

# --- docstrings ---------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# --- how it looks -------------------------------------------------------------------------------

html_theme = "furo"
html_title = "diskq"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["diskq.css"]
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "source.html",
        "sidebar/scroll-end.html",
    ]
}

# The copy button takes commands without their prompt and their output, and everything else as it stands.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
