"""Writes what the scripts of this folder make, files and blocks of pages, or checks that it is current.

A page says `<!-- generated: NAME -->`, and the script that makes this block writes it from there to `<!-- end -->`: in
lines of its own, or if the comment is not the last of its line, within the line. A block may stand in several pages.
"""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"(<!-- (?P<kind>generated|include): (?P<name>\S+) -->(?P<line>\n?)).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Returns every page that may hold a block."""
    below = (page for folder in ("docs", "examples") for page in sorted((ROOT / folder).rglob("*.md")))
    return [*sorted(ROOT.glob("README*.md")), *below]


def blocks(page: str, kind: str) -> list[str]:
    """Returns the names of a page's blocks of a kind, 'generated' or 'include'."""
    return [block["name"] for block in _BLOCK.finditer(page) if block["kind"] == kind]


def fill(page: str, kind: str, text_of: Callable[[str], str | None]) -> str:
    """Returns a page with its blocks of a kind filled.

    Args:
        page: the text of the page.
        kind: 'generated' or 'include'.
        text_of: gives the text of a block by its name; None leaves the block as it is.
    """

    def filled(block: re.Match[str]) -> str:
        text = text_of(block["name"]) if block["kind"] == kind else None
        return block[0] if text is None else f"{block[1]}{block['line']}{text.strip()}{2 * block['line']}{block[5]}"

    return _BLOCK.sub(filled, page)


def write_or_check(script: str, made: Mapping[Path | str, str]) -> int:
    """Writes what is not current; with `--check` only names it, and returns 1 if there is any.

    Args:
        script: the name of the script.
        made: texts by the path of a file, or by the name of a block.

    Raises:
        ValueError: no page holds one of the blocks.
    """
    files = {name: text for name, text in made.items() if isinstance(name, Path)}
    of_blocks = {name: text for name, text in made.items() if isinstance(name, str)}
    missing = set(of_blocks)
    for page in pages() if of_blocks else ():
        text = files.get(page, page.read_text())
        if held := set(of_blocks).intersection(blocks(text, "generated")):
            files[page] = fill(text, "generated", of_blocks.get)
            missing -= held
    if missing:
        raise ValueError(f"tools/docs/{script}.py: no page holds <!-- generated: {sorted(missing)[0]} -->")
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)}: not current; run `python tools/docs/{script}.py`")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(files[path])
    return 0
