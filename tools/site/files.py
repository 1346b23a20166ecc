"""Files of the repository that pages link to, each as a page that shows it: the site leads nowhere else."""

import os
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path, PurePosixPath

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

import contents

ROOT = contents.ROOT
_FENCED = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>(?!https?://|#)[^)#\s]+)(?P<anchor>#[^)\s]+)?\)")
_LARGEST = 200_000
_wanted: set[str] = set()


def link(text: str, docname: str) -> str:
    """A page whose links to files that are no pages lead to pages that show them."""
    parts = _FENCED.split(text)
    # Code has no links.
    parts[::2] = _LINK.sub(lambda found: _linked(found, docname), "\0".join(parts[::2])).split("\0")
    return "".join(parts)


def _linked(found: re.Match[str], docname: str) -> str:
    folder = PurePosixPath(docname).parent
    target = os.path.normpath(folder / found["target"])
    if (ROOT / target).is_dir() and f"{target}/README.md" in contents.pages():
        return f"[{found['text']}]({found['target'].rstrip('/')}/README.md)"
    if target in contents.pages() or not (ROOT / target).exists():
        return found[0]  # Sphinx says where there is none
    _wanted.add(target)
    return f'<a href="{os.path.relpath(_page(target), folder)}.html">{found["text"]}</a>'


def _page(path: str) -> str:
    return f"files/{path}"


def collect(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    """The pages of files; and at the top a page that leads to the first."""
    yield "index", {"title": "torchgraft", "first": f"{app.config.root_doc}.html"}, "redirect.html"
    wanted = sorted(_wanted)
    shown = set()
    while wanted:
        path = wanted.pop()
        if path in shown:
            continue
        shown.add(path)
        is_folder = (ROOT / path).is_dir()
        within = sorted(_within(path)) if is_folder else []
        wanted += within
        body = _listed(path, within) if is_folder else _highlighted(ROOT / path)
        yield _page(path), {"title": path, "body": f"<h1><code>{escape(path)}</code></h1>{body}"}, "page.html"


def _listed(folder: str, paths: list[str]) -> str:
    if not paths:
        return "<p>No file here is text and short enough to be shown.</p>"
    place = PurePosixPath(_page(folder)).parent
    links = (
        f'<li><a href="{os.path.relpath(_page(path), place)}.html">{escape(PurePosixPath(path).name)}</a></li>'
        for path in paths
    )
    return f"<ul>{''.join(links)}</ul>"


def _within(folder: str) -> Iterator[str]:
    """The folders and the text files in a folder, without files that are too long to read."""
    for path in (ROOT / folder).iterdir():
        is_text = path.suffix in (".py", ".h", ".cpp", ".cu", ".cuh", ".md", ".json")
        if path.name != "__pycache__" and (path.is_dir() or (is_text and path.stat().st_size <= _LARGEST)):
            yield f"{folder}/{path.name}"


def _highlighted(path: Path) -> str:
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(path.read_text(), lexer, HtmlFormatter())
