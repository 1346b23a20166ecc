"""Puts measured results into the pages that show them: nobody types a figure.

A page says `<!-- include: benchmarks/results/cpu/demo.md -->`, and what stands from there to `<!-- end -->` is replaced
by that file: in lines of its own, or where the comment is not the last of its line, by a few words.
`python tools/docs/include.py` does it for README.md, its translations and every page in docs/ and examples/; with
`--check` it only says which pages are not current, and exits with 1 where there are any.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(<!-- include: (?P<file>\S+) -->(?P<line>\n?)).*?(<!-- end -->)", re.DOTALL)


def included(page: str) -> str:
    """A page with every block filled from its file."""

    def filled(block: re.Match[str]) -> str:
        ends = block["line"]
        return f"{block[1]}{ends}{(ROOT / block['file']).read_text().strip()}{2 * ends}{block[4]}"

    return BLOCK.sub(filled, page)


def main() -> int:
    """Writes, or checks, every page."""
    check = "--check" in sys.argv[1:]
    stale = []
    pages = (page for folder in ("docs", "examples") for page in sorted((ROOT / folder).rglob("*.md")))
    for path in (*sorted(ROOT.glob("README*.md")), *pages):
        text = path.read_text()
        if included(text) != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(included(text))
    for path in stale:
        print(f"{path}: {'not current; run `python tools/docs/include.py`' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
