"""Explanations of failures: their meaning, the usual mend, and an example.

A property explains itself in the docstring of its module; all else that a report can name is explained here.
"""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.property import Property
from torchgraft.checking.result import (
    CHANGED_GLOBAL,
    DATA_RACE,
    DIED,
    INCOMING_CHANGED,
    OUT_OF_BOUNDS,
    STALE_CACHE,
    UNDECLARED_SIZE,
    UNWRITTEN_MEMORY,
)

Kind = Literal["property", "cause", "part at fault", "check of a tool"]


@dataclass(frozen=True)
class Explanation:
    """An explanation of something that a report of `graft check` names.

    Attributes:
        key: the name: `property` or `kind` in the JSON of a report, or the part that `at_fault` begins with.
        kind: of the key.
        summary: its meaning, in one sentence.
        proves: what holds if the property holds; empty for other keys.
        cannot_prove: what it leaves open; empty for other keys.
        mend: what usually mends the failure.
        example: a mistake that fails so, or the line of a report.
    """

    key: str
    kind: Kind
    summary: str
    mend: str
    example: str
    proves: str = ""
    cannot_prove: str = ""


_PARAGRAPHS = re.compile(
    r"(?P<summary>.+?)\n\nProves: (?P<proves>.+?)\n\nCannot prove: (?P<cannot_prove>.+?)\n\nMend: (?P<mend>.+?)"
    r"\n\nExample: (?P<example>.+)",
    re.DOTALL,
)


def explain_property(each: Property) -> Explanation:
    """Reads the explanation of a property from the docstring of its module.

    Raises:
        ValueError: the docstring lacks one of its paragraphs.
    """
    said = _PARAGRAPHS.fullmatch(inspect.getdoc(inspect.getmodule(each.check)) or "")
    if said is None:
        raise ValueError(
            f"{each.name}: its docstring must be a line, 'Proves: ...', 'Cannot prove: ...', 'Mend: ...' and"
            " 'Example: ...'"
        )
    texts = {name: " ".join(text.split()) for name, text in said.groupdict().items()}
    return Explanation(each.name, "property", **texts)


@cache
def explanations() -> dict[str, Explanation]:
    """All explanations by their keys: those of properties in the order of reports, and then the others."""
    every = [*map(explain_property, PROPERTIES.values()), *_CAUSES, *_PARTS, *_TOOLS]
    return {each.key: each for each in every}


def find_explanation(key: str) -> Explanation:
    """Finds an explanation by its key, or by a line of a report that begins with the key.

    Raises:
        LookupError: there is none; the message names the nearest keys.
    """
    known = {_plain(each): found for each, found in explanations().items()}
    # A report names the one that the declaration has.
    known["shapes"] = known["output"]
    if (found := known.get(_plain(key))) is not None:
        return found
    near = difflib.get_close_matches(_plain(key), known, n=3, cutoff=0.5)
    nearest = f"the nearest keys are {', '.join(known[each].key for each in near)}; " if near else ""
    raise LookupError(f"there is no explanation of {key!r}: {nearest}`graft explain` lists all keys")


def _plain(key: str) -> str:
    """A key without what differs between a report, JSON and the habits of people."""
    words = re.sub(r"[`'\"=]", "", key.partition(":")[0].lower())
    return re.sub(r"[\s_-]+", " ", words).strip().removeprefix("the ")


_CAUSES = (
    Explanation(
        STALE_CACHE,
        "cause",
        "For new values in the memory of an earlier call, or for other values of the same sizes, the call returns what"
        " it computed before.",
        mend="Remove the cache, or let the caller keep what is packed and pass it as an argument. An address or a size"
        " identifies no tensor: memory is used again, and weights change in training. A cache of weak references must"
        " also compare tensor._version.",
        example="a dict from weight.data_ptr() to the packed weight",
    ),
    Explanation(
        CHANGED_GLOBAL,
        "cause",
        "A call changes a setting of the process, or a global or static variable that other calls read.",
        mend="Pass settings as arguments, allocate buffers at each call, and restore nothing because nothing is"
        " changed. torchgraft::parallel_for needs no torch.set_num_threads.",
        example="static std::vector<float> buffer; in a host function that several threads call at once",
    ),
    Explanation(
        UNWRITTEN_MEMORY,
        "cause",
        "Results depend on what new memory held before the call: an element is read, or returned, that nobody wrote.",
        mend="Write every element of each result and workspace, also in the last, shorter part of a loop, or fill it"
        " before adding to it.",
        example="for (i = 0; i + 8 <= count; i += 8) without a loop for the elements that are left",
    ),
    Explanation(
        OUT_OF_BOUNDS,
        "cause",
        "Results depend on what lies before or behind the tensors of the call.",
        mend="Mask loads as well as stores: in the last block, lanes beyond the size read the neutral element of the"
        " sum or maximum. `graft check NAME --sanitize` names the line.",
        example="tl.load(pointer + offsets) without mask=offsets < columns",
    ),
    Explanation(
        DATA_RACE,
        "cause",
        "Calls with the same arguments differ on several threads, or from one run on a GPU to the next.",
        mend="Give each result one thread, or order the accesses: __syncthreads() between writing and reading shared"
        " memory, sum_rows or sum_partials for sums over threads. `--sanitize`, and on CUDA `--emulate` without"
        " `--quick`, name both lines.",
        example="total += from[i]; in the function that parallel_for runs on every thread",
    ),
    Explanation(
        UNDECLARED_SIZE,
        "cause",
        "The sizes of results depend on the values of arguments, and the declaration does not say so.",
        mend="Declare sizes_from_data=True, and return torchgraft.unknown_size() for that size in `output`; or return a"
        " fixed size, and a count beside it.",
        example="input[input > 0], with one element more or less for other values",
    ),
    Explanation(
        INCOMING_CHANGED,
        "cause",
        "The gradient formula writes to its incoming gradient, which belongs to autograd and to other formulas.",
        mend="Compute in new memory: grad * mask, not grad.mul_(mask); in C++ write to a tensor that the call"
        " allocated.",
        example="output_grads[0].mul_(2 * input)",
    ),
)

_PARTS = (
    Explanation(
        "kernel",
        "part at fault",
        "The same check passes if the kernel's results, or the whole kernel, are replaced by the reference.",
        mend="Read the words behind it. Its values are wrong: debug it on the sample of the report. It is right only if"
        " its arguments are contiguous: take pointers from `to_contiguous`, or use strides. With copies of its"
        " arguments the check passes: it reads or writes memory that is not its own.",
        example="at fault  the kernel: its values are wrong; with those of the reference the check passes",
    ),
    Explanation(
        "gradient formula",
        "part at fault",
        "The same check passes if autograd differentiates the reference in place of the formula.",
        mend="Derive the formula again. Until it is right, `gradient_by_reference(reference, count)` is a gradient that"
        " is right and slow. If only its own derivative is wrong, make it of operations that autograd records.",
        example="at fault  the gradient formula: with the gradient of the reference the check passes",
    ),
    Explanation(
        "output",
        "part at fault",
        "`output` or `shapes` promises other sizes, strides or a dtype than the kernel gives.",
        mend="Decide which of them is right, and change the other one: most kernels that use `to_contiguous` give"
        " contiguous results, and those that use `to_dense` give the strides of torch.empty_like.",
        example="output=lambda input: input.new_empty(input.shape) beside a kernel that returns"
        " empty_as(to_dense(input))",
    ),
    Explanation(
        "reference",
        "part at fault",
        "The reference raises an error in float64, so there is nothing to compare with.",
        mend="Write the reference in plain, differentiable PyTorch for every sample, dtype and device: compute in"
        " torch.promote_types(input.dtype, torch.float32), and not in .float(), which fails float64.",
        example="at fault  the reference: it raises RuntimeError: expected m1 and m2 to have the same dtype, but got:"
        " float != double in float64",
    ),
    Explanation(
        "sample",
        "part at fault",
        "The same check fails with the reference in place of the kernel and of the gradient formula, and the reference"
        " itself loses more digits in float32 than is allowed: something cancels in it, or a rounding is multiplied.",
        mend="Give this sample, and the draw, a number that people would use at such sizes, with a comment that says"
        " why: a larger epsilon where a row has few columns, or a `low` above the pole of a logarithm. Leave the sizes,"
        " the tolerance and all other samples as they are. If no number helps, the definition loses digits: write it so"
        " that nothing cancels.",
        example="a row of one column that is divided by its own root mean square, with an epsilon of 1e-6: the gradient"
        " is the small difference of two large numbers",
    ),
    Explanation(
        "what changes from call to call",
        "part at fault",
        "The same check passes when it is repeated: the failure is random.",
        mend="Look for memory that is never written, and for threads that write to one place: `--sanitize` finds both"
        " on the CPU, and `--stress 1000` repeats calls until it fails again.",
        example="at fault  what changes from call to call: repeated, the check passes. Look for memory that is never"
        " written, and for data races",
    ),
    Explanation(
        DIED.removeprefix("the "),
        "part at fault",
        "The process in which the property ran was ended by a signal, by memory that ran out, or by exit().",
        mend="Run the line behind `again` with `--sanitize`: AddressSanitizer names the line that read or wrote outside"
        " of its memory. If the allocator found its memory damaged, an earlier call did it.",
        example="a kernel that writes one element past the end of its result",
    ),
)

_TOOLS = (
    Explanation(
        "reached",
        "check of a tool",
        "With `--every-kernel` or `--kernel`, a kernel served no call: no sample fits what it supports.",
        mend="Add a sample that the kernel supports, or correct its rule in choice.h.",
        example="a kernel for rows of at least 4096 columns, and no sample has as many",
    ),
    Explanation(
        "compiles",
        "check of a tool",
        "nvcc, Triton's compiler or that of another language cannot compile a kernel; nothing ran.",
        mend="The report ends with the compiler's own lines. `graft doctor` says which compilers are found.",
        example="a __device__ function that calls a function of the host",
    ),
    Explanation(
        "data races",
        "check of a tool",
        "In the emulator two threads access one place of device or shared memory, one of them writes, and no barrier"
        " orders the accesses.",
        mend="The report has both lines: put __syncthreads() or __syncwarp() between them, or make the write atomic.",
        example="sums[threadIdx.x] is written, and sums[threadIdx.x + 16] is read without a barrier in between",
    ),
    Explanation(
        "distrusted",
        "check of a tool",
        "With `--distrust`, the kernel's values differ from the reference's for inputs that nobody could know before.",
        mend="The report has the sample and the first wrong element; `--seed` with the printed number repeats the"
        " inputs. A kernel that returns results which it kept is wrong for these inputs, however right it looked.",
        example="a kernel that returns its previous result if the sizes are the same",
    ),
    Explanation(
        "address sanitizer",
        "check of a tool",
        "AddressSanitizer or UndefinedBehaviorSanitizer stopped a kernel of the CPU.",
        mend="Mend the line that the report names, even if no result is wrong: most are loops with one element too"
        " many, integers that overflow, and pointers that are not aligned.",
        example="for (int64_t i = begin; i <= end; ++i)",
    ),
    Explanation(
        "thread sanitizer",
        "check of a tool",
        "ThreadSanitizer found two threads of a CPU kernel at one place, of which one writes.",
        mend="Split the work so that each element belongs to one thread, or use sum_rows for sums over threads.",
        example="for (int64_t i = begin; i <= end; ++i) in parallel_for: the last element of one thread is the first of"
        " the next",
    ),
    *(
        Explanation(
            tool, "check of a tool", f"compute-sanitizer's {tool} found {found} in a CUDA kernel.", mend, example
        )
        for tool, found, mend, example in (
            (
                "memcheck",
                "an access outside of its memory, or one that is not aligned,",
                "Compare the index with the size before the access, and the address before vector loads (is_aligned).",
                "if (index > count) return; lets index == count pass",
            ),
            (
                "racecheck",
                "accesses of shared memory that no barrier orders",
                "Put __syncthreads() between writing and reading, in a place that all threads of the block reach.",
                "a tile is loaded for the next turn while other warps still read it",
            ),
            (
                "initcheck",
                "a read of device memory that nobody wrote",
                "Write every element of a workspace before it is read: cudaMemsetAsync on scope.stream(), or a store.",
                "blocks without work leave their partial sums unwritten",
            ),
            (
                "synccheck",
                "a barrier that not all threads reach",
                "Move __syncthreads() out of branches and in front of early returns.",
                "if (row >= rows) return; before __syncthreads()",
            ),
        )
    ),
)
