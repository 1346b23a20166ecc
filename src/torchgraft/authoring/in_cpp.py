"""The parts of a new operator's kernels that are written in C++, as text."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.authoring import sizes
from torchgraft.authoring.stubs import CPP_WORDS, Copy, Stub, multiplied, rest_of, source_of
from torchgraft.declaration.schema import Argument
from torchgraft.kernels.signatures import cpp_type

_WIDTH = 110


def host_function(stub: Stub, device: str) -> str:
    """The function in C++ that is the kernel on a kind of device, with the types that the schema says.

    Args:
        stub: the operator.
        device: 'cpu' or 'cuda'.
    """
    used = {argument.name for argument in stub.arguments if argument.holds_tensors}
    used |= {name for copy in stub.copies for _, name, source in _sources(stub, copy) if source is None}
    taken = [
        f"{cpp_type(argument)} {_cpp_name(argument.name) if argument.name in used else f'/*{argument.name}*/'}"
        for argument in stub.arguments
    ]
    types = ["std::vector<Tensor>" if copy.to_list else "Tensor" for copy in stub.copies]
    returned = types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>" if types else "void"
    lines = [_filled(f"{returned} {stub.name}_{device}(", taken, ") {"), *_checks(stub)]
    copies = [_cpp_zeros(stub, copy) or _cpp_copy(copy) for copy in stub.copies]
    if stub.mutated:
        # Copied first: what is written to may be what is copied.
        if types:
            lines.append(_filled(f"  {returned} copies{{", copies, "};"))
        lines += map(_cpp_zero, stub.mutated)
        if types:
            lines.append("  return copies;")
    elif len(types) == 1:
        lines.append(f"  return {copies[0]};")
    else:
        lines.append(_filled("  return {", copies, "};"))
    return "\n".join([*lines, "}"])


def helpers_of(stubs: Sequence[Stub]) -> set[str]:
    """Which helpers the host functions of some operators call."""
    copies = [copy for stub in stubs for copy in stub.copies]
    found = {"copied" for copy in copies if not copy.zero}
    found |= {"set_to_zero" for stub in stubs if stub.mutated}
    found |= {"copied_list" for copy in copies if copy.from_list and copy.to_list}
    return found | {"zeros" if copy.words is None else "zeros_of" for copy in copies if copy.zero}


def _checks(stub: Stub) -> list[str]:
    """The lines that check each tensor: all lie in memory, and have one device and, without integers, one dtype."""
    tensors = stub.tensors
    first = next((each for each in tensors if not each.is_list and not each.optional), None)
    lines, pairs = [], []
    if first is None:
        first = next(each for each in tensors if not each.optional and not each.optional_elements)
        name = _cpp_name(first.name)
        lines.append(f'  TORCHGRAFT_CHECK(!{name}.empty(), "{first.name} must hold a tensor");')
        pairs.append(f'{name}[0], "{first.name}"')
    else:
        tensors.remove(first)
        tensors.insert(0, first)
    pairs += [f'{_cpp_name(argument.name)}, "{argument.name}"' for argument in tensors]
    words = ", ".join(pairs).split(", ")
    lines.append(_filled("  check_alike(", words, ");"))
    for each in stub.integers:
        name, one = _cpp_name(each), pairs[-len(tensors)].partition(",")[0]
        lines.append(f'  check_elements<int64_t>({name}, "{each}");')
        lines.append(f'  check_memory({name}, "{each}");')
        lines.append(f'  TORCHGRAFT_CHECK(same_device({one}, {name}), "{each} must be on the device of {one}");')
    return [*lines, *_checks_of_dimensions(stub)]


def _checks_of_dimensions(stub: Stub) -> list[str]:
    """The lines that check the dimensions of tensors whose sizes the results have."""
    assert stub.words is not None or all(copy.words is None for copy in stub.copies)
    sources = (source for copy in stub.copies for _, _, source in _sources(stub, copy))
    tensors = [source.tensor for source in sources if source is not None]
    tensors += [rest_of(stub)[0] for copy in stub.copies if "..." in (copy.words or ())]
    lines = []
    for name in dict.fromkeys(tensors):
        shape = stub.words.arguments[name] if stub.words is not None else ()
        count, said = len(shape) - 1, _cpp_name(name)
        if "..." not in shape:
            lines.append(f'  check_dim({said}, {len(shape)}, "{name}");')
        elif count:
            most = f"{name} must have at least {count} dimension{'s' * (count > 1)}"
            lines.append(f'  TORCHGRAFT_CHECK({said}.dim() >= {count}, "{most}");')
    return lines


def _sources(stub: Stub, copy: Copy) -> list[tuple[int, str, sizes.Source | None]]:
    """Where each size of a result that is zero comes from, as far as it has a name."""
    found = [source_of(stub, word) for word in copy.words or () if word != "..."]
    return [each for each in found if each[1]]


def _cpp_zeros(stub: Stub, copy: Copy) -> str:
    """A result that is zero and has no argument's shape, in C++; an empty text for any other."""
    if copy.words is None:
        return ""
    like = _cpp_name(copy.argument)
    if "..." in copy.words:
        tensor, front, back = rest_of(stub)
        begin, end = (f"{_cpp_name(tensor)}.sizes().{each}()" for each in ("begin", "end"))
        begin, end = begin + f" + {front}" * bool(front), end + f" - {back}" * bool(back)
        return f"zeros_of(std::vector<int64_t>({begin}, {end}), {like})"
    found = []
    for word in copy.words:
        number, name, source = source_of(stub, word)
        text = _cpp_name(name) if source is None else f"{_cpp_name(source.tensor)}.size({source.place})"
        found.append(multiplied(number, text, "/", source) if name else str(number))
    return f"zeros_of({{{', '.join(found)}}}, {like})"


def _cpp_name(name: str) -> str:
    return f"{name}_" if CPP_WORDS.fullmatch(name) else name


def _cpp_copy(copy: Copy) -> str:
    name = _cpp_name(copy.argument)
    if copy.zero:
        return f'zeros({name}, "{copy.argument}")'
    if copy.from_list and not copy.to_list:
        name += "[0]"
    text = f'copied({name}, "{copy.argument}")'
    return f"std::vector<Tensor>{{{text}}}" if copy.to_list and not copy.from_list else text


def _cpp_zero(argument: Argument) -> str:
    name = _cpp_name(argument.name)
    if argument.is_list:
        each = "if (each) set_to_zero(*each)" if argument.optional_elements else "set_to_zero(each)"
        loop = f"for (auto& each : {f'*{name}' if argument.optional else name}) {each};"
        return f"  if ({name}) {loop}" if argument.optional else f"  {loop}"
    return f"  if ({name}) set_to_zero(*{name});" if argument.optional else f"  set_to_zero({name});"


def _filled(before: str, items: Sequence[str], after: str) -> str:
    """A list of items as clang-format wants it: as many on a line as fit, below the first, or else indented."""
    indented = " " * (len(before) - len(before.lstrip()) + 4)
    for lead, margin in ((before, " " * len(before)), (f"{before}\n{indented}", indented)):
        lines, line = [], lead.rpartition("\n")[2]
        for number, item in enumerate(items):
            text = item + (after if number == len(items) - 1 else ",")
            space = " " if number and line != margin else ""
            if number and len(line) + len(space) + len(text) > _WIDTH:
                lines.append(line)
                line, space = margin, ""
            line += space + text
        lines.append(line)
        if max(map(len, lines)) <= _WIDTH:
            break
    return lead.rpartition("\n")[0] + "\n" * ("\n" in lead) + "\n".join(lines)
