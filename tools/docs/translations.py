"""Keeps the code of translated pages as it is on the English ones.

`README.zh.md` and the pages in docs/zh say in Chinese what `README.md` and the pages of the same names in docs say;
`ja` stands for Japanese. People write their text. `python tools/docs/translations.py` copies each block of code from an
English page over the block in the same place of its translations, where a new block may be empty; with `--check` it
only says which pages are not current. tests/test_translations.py compares the rest.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from generated import ROOT, write_or_check

ENGLISH = "en"
LANGUAGES = {ENGLISH: "English", "zh": "简体中文", "ja": "日本語"}
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def in_language(page: Path, language: str) -> Path:
    """Where the translation of an English page is, if there is one."""
    if language == ENGLISH:
        return page
    if page == ROOT / "README.md":
        return ROOT / f"README.{language}.md"
    return ROOT / "docs" / language / page.relative_to(ROOT / "docs")


def translations() -> Iterator[tuple[str, Path, Path]]:
    """The language of each translated page, its English page, and itself."""
    for language in LANGUAGES:
        if language != ENGLISH:
            yield language, ROOT / "README.md", ROOT / f"README.{language}.md"
            folder = ROOT / "docs" / language
            for page in sorted(folder.rglob("*.md")):
                yield language, ROOT / "docs" / page.relative_to(folder), page


def links_to_languages(page: Path, language: str) -> str:
    """The line at the top of a page, in a language, that links the English page and its translations."""
    folder = in_language(page, language).parent
    return " | ".join(
        name if each == language else f"[{name}]({os.path.relpath(in_language(page, each), folder)})"
        for each, name in LANGUAGES.items()
    )


def with_code_of(english: str, translated: str, name: str) -> str:
    """A translated page with the code of the English one.

    Raises:
        ValueError: the pages have different numbers of blocks, so that nobody knows which belong together.
    """
    blocks = _FENCED.findall(english)
    count = len(_FENCED.findall(translated))
    if len(blocks) != count:
        raise ValueError(f"{name} must have {len(blocks)} blocks of code, as the English page has; it has {count}")
    following = iter(blocks)
    return _FENCED.sub(lambda _: next(following), translated)


def main() -> int:
    """Writes, or checks, every translated page."""
    return write_or_check(
        "translations",
        {
            page: with_code_of(english.read_text(), page.read_text(), str(page.relative_to(ROOT)))
            for _, english, page in translations()
        },
    )


if __name__ == "__main__":
    sys.exit(main())
