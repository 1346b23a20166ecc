"""docs/kernels.md names all that authors of kernels include, and nothing that is not there."""

import re

import public
from test_docs import FENCED, ROOT

PAGE = FENCED.sub("", (ROOT / "docs/kernels.md").read_text())
HEADERS = {line.partition(":")[0]: set(line.partition(": ")[2].split(", ")) for line in public.headers()}
# What the page says no author includes.
INTERNAL = set(re.findall(r"torchgraft/\w+\.\w+", PAGE[PAGE.index("no author does") : PAGE.index("## Registration")]))
# Parts of what the page names: types of members, and what macros and tools need.
PARTS = {
    "torchgraft/arguments.h": {"check_beside"},
    "torchgraft/checks.h": {"torch_exception_get_what_without_backtrace", "what_pytorch_says"},
    "torchgraft/choice.h": {
        "torchgraft_chosen",
        "torchgraft_force_alone",
        "torchgraft_force_kernel",
        "torchgraft_kernels",
        "torchgraft_trace_answers",
    },
    "torchgraft/cpu.h": {"TORCHGRAFT_HAS_TARGETS", "TORCHGRAFT_TARGET", "TORCHGRAFT_VECTOR_CLONE", "VectorOf"},
    "torchgraft/cpu_convert.h": {"kConverts"},
    "torchgraft/cublas.h": {"Cublas"},
    "torchgraft/device.cuh": {"compiled_as_this_file"},
    "torchgraft/layout.h": {"Strides"},
    "torchgraft/registration.h": {
        "TORCHGRAFT_COMPILER",
        "TORCHGRAFT_MEASURED",
        "TORCHGRAFT_QUOTED",
        "TORCHGRAFT_QUOTED_",
        "compiled_by",
    },
    "torchgraft/relayout.cuh": {
        "kRelayoutThreads",
        "kRelayoutTile",
        "launch_transpose",
        "pad_channels",
        "transpose_matrices",
    },
    "torchgraft/text.h": {"ToImpl", "internal", "text"},
}
# A function for each instruction, under the names of the PTX manual.
NAMED_ELSEWHERE = {"torchgraft/ptx.cuh"}


def words_in_code(text):
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}


def test_every_header_is_on_the_page():
    assert set(re.findall(r"`(torchgraft/\w+\.\w+)`", PAGE)) == HEADERS.keys()


def test_every_name_of_an_authors_header_is_on_the_page():
    named = words_in_code(PAGE)
    missing = {
        header: names - PARTS.get(header, set()) - named
        for header, names in HEADERS.items()
        if header not in INTERNAL | NAMED_ELSEWHERE
    }
    assert not {header: names for header, names in missing.items() if names}
    assert not [header for header, names in PARTS.items() if names - HEADERS[header]]


def test_what_a_table_explains_is_there():
    """The first word of each piece of code in the first column: a function, a type or a macro."""
    tables = PAGE[PAGE.index("## Dtypes") :]
    cells = re.findall(r"^\| (`[^|]*?) \|", tables, re.MULTILINE)
    explained = {
        re.match(r"(?:scope\.)?\w+", code)[0].split(".")[-1]
        for cell in cells
        for code in re.findall(r"`([^`]+)`", cell)
    }
    assert len(explained) > 60
    assert not explained - set().union(*HEADERS.values())
