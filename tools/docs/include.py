"""Puts files of results into the pages that show them: nobody types a figure.

A page says `<!-- include: benchmarks/results/cpu/demo.md -->`, and what stands from there to `<!-- end -->` is replaced
by that file. `python tools/docs/include.py` does it for README.md, its translations and every page in docs/ and
examples/; with `--check` it only names the pages that are not current, and exits with 1 if there are any.
"""

import sys

from generated import ROOT, fill, pages, write_or_check


def included(page: str) -> str:
    """Returns a page with every block filled from its file."""
    return fill(page, "include", lambda name: (ROOT / name).read_text())


def main() -> int:
    """Writes, or checks, every page."""
    return write_or_check("include", {path: included(path.read_text()) for path in pages()})


if __name__ == "__main__":
    sys.exit(main())
