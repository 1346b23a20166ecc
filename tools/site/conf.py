"""How Sphinx makes the site: `make docs-site`.

Its pages are the Markdown files of this repository, as `contents.py` lists them. What a repository's host shows as a
comment becomes something on the site: `<!-- reference: ... -->` the documentation of what it names (`reference.py`). A
link to a file that is no page leads to a page that shows the file (`files.py`).

Nothing is fetched, neither here nor by who reads the site from a folder: formulas become MathML (`formulas.py`), and
the search has its index in a script.
"""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from sphinx.application import Sphinx

import contents
import files
import formulas
import reference
from torchgraft.version import __version__

project = "torchgraft"
release = version = __version__
html_title = f"torchgraft {__version__}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = contents.ROOT_PAGE
include_patterns = contents.pages()
# Folders that nobody needs to look into.
exclude_patterns = [".*", "build", "dist", "src", "tests", "benchmarks", "tools"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 5
highlight_language = "text"
smartquotes_action = "D"
default_role = "code"

napoleon_use_ivar = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
cpp_maximum_signature_line_length = 88
cpp_id_attributes = ["__device__", "__host__", "__global__", "__restrict__"]
toc_object_entries_show_parents = "hide"

html_theme = "furo"
templates_path = ["templates"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# A summary would be fetched, which a browser refuses where pages come from a folder.
html_show_search_summary = False
html_math_renderer = "mathml"

_FENCED = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _prepare(app: Sphinx, docname: str, content: list[str]) -> None:
    """A page as the site shows it."""
    text = content[0]
    text = _FENCED.sub(_with_caption, text)
    text = files.link(text, docname)
    text = reference.insert(text)
    content[0] = text + contents.trees(docname)


def _with_caption(block: re.Match[str]) -> str:
    """A block that names a file, with the name as its caption, in which two underscores mean themselves."""
    language, name, code = block.groups()
    return f"```{{code-block}} {language}\n:caption: {name.replace('_', chr(92) + '_')}\n\n{code}```"


def _say_language(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Says of a translated page which language it is in: Chinese and Japanese draw the same characters differently."""
    for language, name in {"zh": "zh-Hans", "ja": "ja"}.items():
        if pagename.startswith(f"docs/{language}/"):
            context["language"] = name


def setup(app: Sphinx) -> None:
    """Joins the parts."""
    app.connect("html-page-context", _say_language)
    app.connect("source-read", _prepare)
    app.connect("autodoc-process-docstring", reference.tidy, priority=100)
    app.connect("autodoc-process-signature", reference.tidy_signature)
    app.connect("html-collect-pages", files.collect)
    formulas.setup(app)
