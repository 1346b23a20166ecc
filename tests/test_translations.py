"""The translated pages: they say what the English ones say, as far as their code, links and figures tell."""

import os
import re

import pytest

import translations
from test_docs import FENCED, ROOT
from translations import LANGUAGES, in_language, links_to_languages

PAGES = list(translations.translations())
PAIRS = [pytest.param(*each, id=str(each[-1].relative_to(ROOT))) for each in PAGES]
ENGLISH = {page: english for _, english, page in PAGES}
TRANSLATED = {(language, english): page for language, english, page in PAGES}
INCLUDED = re.compile(r"<!-- (?:include|generated): (?P<file>\S+) -->(?P<text>.*?)<!-- end -->", re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]*)[^)]*\)")
LINE = re.compile(r"(?P<heading>#+) |(?P<item> *[-*]|\d+\.) |(?P<table>\|.*\|)$|(?P<indented> {4}.*)$")
# Hiragana, katakana and Chinese characters; punctuation of both languages.
LETTER = "[\u3005\u3040-\u30ff\u4e00-\u9fff]"
MARK = "[\u3001-\u3004\u3006-\u303f\uff00-\uffef]"
WORD = "[A-Za-z0-9`]"


def order_of(text):
    """The parts that have the same order in all languages: code, headings, items, rows of tables, included text."""
    found = [(each.start(), each[0]) for each in FENCED.finditer(text)]
    found += [(each.start(), each[0]) for each in INCLUDED.finditer(text)]
    place = 0
    for line in blank(text).splitlines(keepends=True):
        if each := LINE.match(line.rstrip("\n")):
            table = each["table"]
            found.append((place, each["heading"] or each["item"] or each["indented"] or f"{table.count('|')} bars"))
        place += len(line)
    return [token for _, token in sorted(found)]


def blank(text):
    """A page without its blocks of code and its included text, and with everything else where it was."""
    for pattern in (FENCED, INCLUDED):
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return text


# In Japanese a small number with its counter is a word, as "one" and "second" are.
COUNTED = re.compile(r"(?<![\d.])[1-9](?=[つ行列回階])")


def words_of(text):
    """The parts that a sentence may have in another order: code within lines, and numbers."""
    plain = COUNTED.sub("", LINK.sub(lambda link: link["text"], blank(text)))
    return sorted([*CODE.findall(plain), *re.findall(r"\d+(?:\.\d+)*", CODE.sub("", plain))])


def links_of(text, page, language):
    """Where a page leads, as places in the repository; an English page to the pages in a language, where there are any.

    Pictures are marked: one is no link.
    """
    found = []
    for link in LINK.finditer(blank(text)):
        target = link["target"]
        if not re.match("https?:", target):
            path = ROOT / os.path.normpath(page.parent / target)
            path = TRANSLATED.get((language, path), path) if page not in ENGLISH else path
            target = str(path.relative_to(ROOT))
        found.append(link["picture"] + target)
    return sorted(found)


def said_by(text, page, language):
    """All that a page has in common with its translation into a language, or with its English page."""
    english = ENGLISH.get(page, page)
    text = text.replace(links_to_languages(english, language if page in ENGLISH else "en"), "")
    return {"order": order_of(text), "words": words_of(text), "links": links_of(text, page, language)}


def prose_of(text):
    """The lines that people write, without the marks of Markdown."""
    text = INCLUDED.sub(lambda each: each[0] if "\n" in each["text"] else each["text"], text)
    text = LINK.sub(lambda link: link["text"], blank(text)).replace("**", "")
    for line in text.splitlines():
        if not line.startswith("    "):
            yield from (re.sub(r"^(#+|-) ", "", part.strip()) for part in line.strip("|").split("|"))


@pytest.mark.parametrize(("language", "english", "page"), PAIRS)
def test_a_translation_has_the_code_the_figures_and_the_links_of_the_english_page(language, english, page):
    assert said_by(page.read_text(), page, language) == said_by(english.read_text(), english, language)


@pytest.mark.parametrize(
    ("there", "changed"),
    [
        ("torchgraft.graft(model)\n", "torchgraft.ungraft(model)\n"),
        ("```cpp cube/cpu.cpp", "```cpp cube/other.cpp"),
        ("PyTorch 2.11", "PyTorch 2.12"),
        ("| ms before |", "| ms |"),
        ("generated: models", "generated: origins"),
        ("`state_dict`", "`parameters`"),
        ("(docs/lltm.md)", "(docs/shift.md)"),
        ("(docs/start/model.md)", "(docs/start/kernel.md)"),
        ("h200/bench.svg", "cpu/bench.svg"),
        ("## Install", "### Install"),
        ("- Operators:", "Operators:"),
    ],
)
def test_a_change_of_one_page_alone_is_seen(there, changed):
    page = ROOT / "README.md"
    text = page.read_text()
    assert text.count(there) == 1
    for language in ("zh", "ja"):
        before, after = (said_by(each, page, language) for each in (text, text.replace(there, changed)))
        assert before != after


@pytest.mark.parametrize(("language", "english", "page"), PAIRS)
def test_each_page_links_itself_in_the_other_languages(language, english, page):
    for each in LANGUAGES:
        path = in_language(english, each)
        assert path.is_file()
        assert links_to_languages(english, each) in path.read_text().splitlines()[1:3]


@pytest.mark.parametrize(
    "path", ["README.md", "docs/index.md", "docs/start/model.md", "docs/start/kernel.md", "docs/tutorial.md"]
)
def test_the_first_pages_are_translated(path):
    assert {language for language in LANGUAGES if in_language(ROOT / path, language).is_file()} == set(LANGUAGES)


def misset(line, language):
    """The mistakes in the punctuation and the spaces of a line."""
    wrong = [rf"{LETTER}[,.;:!?()]|[,;:!?(]{LETTER}", f" {MARK}|{MARK} "]
    # Chinese has a space beside a word in Latin letters, Japanese has none.
    wrong.append(f"{LETTER}{WORD}|{WORD}{LETTER}" if language == "zh" else f"{LETTER} | {LETTER}")
    found = re.search("|".join([*wrong, f"{LETTER} {LETTER}"]), line)
    return found and found[0]


@pytest.mark.parametrize(("language", "english", "page"), PAIRS)
def test_punctuation_and_spaces_are_those_of_the_language(language, english, page):
    text = page.read_text().replace(links_to_languages(english, language), "")
    assert [each for line in prose_of(text) if (each := misset(line, language))] == []


@pytest.mark.parametrize(
    ("line", "language", "wrong"),
    [
        ("内核 kernel。", "zh", None),
        ("内核kernel。", "zh", "核k"),
        ("内核, 梯度", "zh", "核,"),
        ("内核。 梯度", "zh", "。 "),
        ("カーネルkernelは、一つ。", "ja", None),
        ("カーネル kernel", "ja", "ル "),
        ("カーネル.", "ja", "ル."),
    ],
)
def test_a_wrong_space_or_mark_is_seen(line, language, wrong):
    assert misset(line, language) == wrong


def test_code_of_the_english_page_goes_over_that_of_the_translation():
    english = "Say\n\n```py\none = 1\n```\n\nand\n\n```\n1\n```\n"
    assert translations.with_code_of(english, "说\n\n```\n```\n\n和\n\n```\n2\n```\n", "zh.md") == (
        "说\n\n```py\none = 1\n```\n\n和\n\n```\n1\n```\n"
    )
    with pytest.raises(ValueError, match=r"^zh.md must have 2 blocks of code, as the English page has; it has 1$"):
        translations.with_code_of(english, "```\n```\n", "zh.md")
