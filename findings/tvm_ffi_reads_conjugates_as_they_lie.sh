#!/bin/sh
# apache-tvm-ffi 0.1.15: a function gets the memory of a lazy conjugate, not its values, and no error says so.
#
# Call: a function of tvm-ffi with `z.conj()`, and with a tensor that requires a gradient.
#
# Expected: an error for both. tvm-ffi takes tensors by DLPack, whose export in PyTorch refuses both: "Can't export
# tensors with the conjugate bit set".
#
# What happens: the function computes with z. A tensor that requires a gradient is taken too; one that is returned shares
# its memory and requires none.
#
# Why it matters: a complex result is conjugated, and a training goes on without the gradient of the function.
#
# What to do: call `resolve_conj()` first, and give the function a gradient. torchgraft's
# `operator.kernel(..., fills=True)` does the first, and an operator has the second.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6 apache-tvm-ffi==0.1.15.post2 ninja==1.13.2
export TVM_FFI_CACHE_DIR="$folder/cache" PATH="$folder/venv/bin:$PATH"

cat > "$folder/example.py" <<'EOF'
import torch
import tvm_ffi.cpp

library = tvm_ffi.cpp.load_inline(
    "returning",
    cpp_sources="tvm::ffi::Tensor give_back(tvm::ffi::Tensor tensor) { return tensor; }",
    functions=["give_back"],
)
print("tvm_ffi", tvm_ffi.__version__, "torch", torch.__version__)
conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
leaf = torch.ones(2, requires_grad=True)
for name, tensor in (("z.conj()", conjugate), ("a tensor that requires a gradient", leaf)):
    try:
        torch.from_dlpack(tensor)
        raise SystemExit("the behaviour has changed")
    except BufferError as error:
        print(f"PyTorch's export refuses {name}:", error)
found = library.give_back(conjugate)
print("z.conj() is", conjugate.tolist(), "and comes back as", found.tolist())
assert torch.equal(found, conjugate.conj()), "the behaviour has changed"
found = library.give_back(leaf)
print("the other one comes back, and requires a gradient:", found.requires_grad)
assert found.data_ptr() == leaf.data_ptr() and not found.requires_grad, "the behaviour has changed"
EOF
"$folder/venv/bin/python" "$folder/example.py"
