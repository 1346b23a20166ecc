"""The files of a new operator that hold its kernels, as text: in C++, in CUDA C++ and in Triton."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.authoring import in_cpp, in_python
from torchgraft.authoring.operator_files import called, import_of
from torchgraft.authoring.stubs import Stub
from torchgraft.authoring.texts import filled, module_text

# The headers of what a text in C++ uses.
_HEADERS = (
    ("torch::stable::zero_(", "torch/csrc/stable/ops.h"),
    ("check_alike(", "torchgraft/arguments.h"),
    ("check_dim(", "torchgraft/checks.h"),
    ("TORCHGRAFT_CHECK(", "torchgraft/checks.h"),
    ("same_device(", "torchgraft/checks.h"),
    ("parallel_for(", "torchgraft/cpu.h"),
    ("check_elements<", "torchgraft/data.h"),
    ("dispatch_floating(", "torchgraft/dispatch.h"),
    ("empty_contiguous(", "torchgraft/empty.h"),
    ("empty_as(", "torchgraft/layout.h"),
    ("ceil_divide<", "torchgraft/numbers.h"),
    ("", "torchgraft/registration.h"),
    ("Text ", "torchgraft/text.h"),
    ("Text>", "torchgraft/text.h"),
    ("Launch ", "torchgraft/cuda.cuh"),
)
_OTHER_HEADERS = (
    ("std::optional<", "optional"),
    ("std::tuple<", "tuple"),
    ("std::vector<", "vector"),
)


def _to_dense(found: Sequence[Stub]) -> str:
    """The function that brings a tensor into the layout of a result, which is contiguous if shapes are declared."""
    return "to_dense" if found[0].words is None else "to_contiguous"


def cpp_file(device: str, name: str, found: Sequence[Stub], is_complete: bool) -> str:
    """The kernels in C++ for a kind of device."""
    suffix = "cpp" if device == "cpu" else "cu"
    values = {"name": name, "operator": found[0].name, "to_dense": _to_dense(found)}
    if is_complete:
        parts = [f"square.{suffix}", f"square_backward.{suffix}"][: len(found)]
        text = "".join(filled(part, values) for part in parts)
    else:
        used = in_cpp.helpers_of(found)
        helpers = {
            "copied": f"helper_copied.{suffix}",
            "copied_list": "helper_copied_list",
            "zeros": "helper_zeros",
            "zeros_of": "helper_zeros_of",
            "set_to_zero": "helper_set_to_zero",
        }
        text = "".join(filled(part, values) for helper, part in helpers.items() if helper in used)
        text += "\n\n".join(in_cpp.host_function(stub, device) for stub in found) + "\n"
    blocks = []
    for headers in (_HEADERS, _OTHER_HEADERS):
        included = dict.fromkeys(f"#include <{header}>\n" for word, header in headers if word in text)
        blocks += ["\n" + "".join(included)] if included else []
    leads = {"cpu": "one pass through memory, on all threads.", "cuda": "a thread owns one element."}
    return filled(
        f"{device}.{suffix}",
        {
            "name": name,
            "operator": found[0].name,
            "lead": leads[device] if is_complete else found[0].summary,
            "includes": "".join(blocks),
            "functions": text,
            "registrations": "\n".join(
                f"TORCHGRAFT_KERNEL({name}, {device.upper()}, {stub.name}, {stub.name}_{device})" for stub in found
            ),
        },
    )


def triton_file(name: str, found: Sequence[Stub], is_complete: bool) -> str:
    """The kernels in Triton."""
    values = {"name": name, "operator": found[0].name}
    if is_complete:
        parts = ["square.py", "square_backward.py"][: len(found)]
        text = "\n" + "".join(filled(part, values) for part in parts)
    else:
        helper = "helper_copied.py" if found[0].words is None else "helper_copied_contiguous.py"
        text = "\n" + filled(helper, values) if "copied" in in_cpp.helpers_of(found) else ""
        for stub in found:
            signature = in_python.joined(
                f"def {stub.name}_blocks(", in_python.parameters(stub), f") -> {in_python.result_annotation(stub)}:"
            )
            body = "".join(f"    {line}\n" for line in "\n".join(in_python.triton_body(stub)).splitlines())
            text += f"""

@{called(stub)}.kernel("cuda", triton=True)
{signature}
    \"\"\"One program for each block of elements.\"\"\"
{body}"""
    block = "\n_BLOCK = 1024\n" if "_BLOCK" in text else ""
    summary = (
        f"Kernels of {found[0].name} in Triton: a program owns a block of elements, and reads and writes each once."
    )
    return module_text(summary, f"{block}{text}", [import_of(name, found)])
