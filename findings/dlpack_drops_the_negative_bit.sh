#!/bin/sh
# PyTorch 2.13.0: DLPack exports the imaginary part of a conjugate with the wrong sign, without an error.
#
# Call: `torch.from_dlpack(z.conj().imag)`, or `numpy.from_dlpack` of it.
#
# Expected: the values of `z.conj().imag`; or an error, as `Tensor.numpy()` raises one for this tensor, and as DLPack's
# export raises one for `z.conj()` and for a tensor that requires a gradient.
#
# What happens: the values have the opposite sign. `z.conj().imag` is a lazy negative of the memory of z; the export
# checks the conjugate bit and not the negative bit.
#
# Why it matters: this is how tensors reach CuPy, JAX, CuTe DSL and others. Such a tensor looks like any other of
# float32, and comes out of formulas with complex numbers, such as gradients of Fourier transforms.
#
# What to do: call `resolve_neg()` before the export. torchgraft's `operator.kernel(..., fills=True)` does so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6

cat > "$folder/example.py" <<'EOF'
import numpy
import torch

print("torch", torch.__version__, "numpy", numpy.__version__)
z = torch.tensor([0 + 1j, 0 + 2j])
imaginary = z.conj().imag
print("the tensor:", imaginary.tolist())
for name, take in (("torch.from_dlpack", torch.from_dlpack), ("numpy.from_dlpack", numpy.from_dlpack)):
    found = take(imaginary).tolist()
    print(f"{name}:", found)
    assert found == [1.0, 2.0], "the behaviour has changed"
print("torch.from_dlpack of what resolve_neg() gives:", torch.from_dlpack(imaginary.resolve_neg()).tolist())
for name, refused in (
    ("numpy()", imaginary.numpy),
    ("from_dlpack(z.conj())", lambda: torch.from_dlpack(z.conj())),
    ("from_dlpack of one that requires a gradient", lambda: torch.from_dlpack(torch.ones(1, requires_grad=True))),
):
    try:
        refused()
        raise SystemExit("the behaviour has changed")
    except (BufferError, RuntimeError) as error:
        print(f"{name} is refused:", error)
EOF
"$folder/venv/bin/python" "$folder/example.py"
