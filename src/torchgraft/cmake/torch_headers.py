"""Prints the include directory of the PyTorch whose headers the kernels are compiled against.

Only headers are needed: the libraries link against empty stand-ins (see TorchgraftKernels.cmake). So a PyTorch that
cannot be imported, as in an isolated build, still serves, and the build need not download another one.
"""

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

STABLE_HEADER = Path("torch/csrc/stable/library.h")


def candidates() -> list[Path]:
    """Where PyTorch's headers may lie, best first."""
    found = []
    if named := os.environ.get("TORCHGRAFT_TORCH_INCLUDE"):
        found.append(Path(named))
    # Under pip's build isolation this is still the site-packages of the environment that asked for the build: whether
    # its PyTorch was built with CUDA counts, and not that of one which pip fetched for the build alone.
    found += [Path(sysconfig.get_path(name)) / "torch/include" for name in ("purelib", "platlib")]
    if (spec := importlib.util.find_spec("torch")) and spec.origin:
        found.append(Path(spec.origin).parent / "include")
    return found


def torch_include() -> Path | None:
    """The first directory that holds PyTorch's stable headers, or None."""
    return next((path for path in candidates() if (path / STABLE_HEADER).is_file()), None)


def has_cuda() -> bool:
    """Whether the PyTorch of these headers was built with CUDA."""
    include = torch_include()
    return include is not None and (include.parent / "lib/libtorch_cuda.so").is_file()


if __name__ == "__main__":
    include = torch_include()
    if include is None:
        looked = "\n  ".join(str(path) for path in candidates())
        sys.exit(f"torchgraft needs the headers of PyTorch 2.11 or later; looked in:\n  {looked}\nInstall torch.")
    print(include)
