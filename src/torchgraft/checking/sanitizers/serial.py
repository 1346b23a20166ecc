"""Runs jobs one after the other in one process, for a tool that watches a process from outside.

`python -m torchgraft.checking.sanitizers.serial FILE` reads the jobs from a file. It prints a line when a job begins,
and a line with its result; what the tool reports stands between them. A second argument, one of PRODUCTS, says how
PyTorch computes matrix products.
"""

import base64
import importlib
import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchgraft._private import pytorch
from torchgraft.checking.jobs import Job
from torchgraft.checking.result import Result
from torchgraft.checking.run import run_job
from torchgraft.finding import places
from torchgraft.kernels.precision import products_by_pytorch

_MARK = "@graft "
# PyTorch's matrix products that write to memory that they are given.
_PRODUCTS = ("mm.out", "mm.dtype_out", "addmm.out", "bmm.out", "bmm.dtype_out", "baddbmm.out")


def encode(jobs: Sequence[Job]) -> bytes:
    """Encodes the content of the file: where modules lie, those that declare the operators, and the jobs."""
    modules = sorted({job.operator.module for job in jobs})
    return pickle.dumps((sys.path, places.places(), modules, pickle.dumps(list(jobs))))


def decode(line: str) -> tuple[int, Result | None] | None:
    """Decodes a line: the number of a job, and its result if it has ended; None for a line of the tool."""
    if not line.startswith(_MARK):
        return None
    number, _, result = line.removeprefix(_MARK).strip().partition(" ")
    return int(number), pickle.loads(base64.b64decode(result)) if result else None


def _say(number: int, result: Any = None) -> None:
    if torch.cuda.is_initialized():
        # The tool then prints its reports about the last job before this line.
        torch.cuda.synchronize()
    shown = "" if result is None else base64.b64encode(pickle.dumps(result)).decode()
    print(f"{_MARK}{number} {shown}", flush=True)


@contextmanager
def _replaced(kernels: Mapping[str, Any], key: str, **options: bool) -> Iterator[None]:
    """A scope in which PyTorch's operators of these names have other kernels, and no kernel of ours goes past them."""
    library_scope = pytorch.scoped_library("aten", "IMPL")
    with library_scope as library, products_by_pytorch(), warnings.catch_warnings():
        # PyTorch warns that a kernel is replaced, which is intended.
        warnings.simplefilter("ignore")
        for name, kernel in kernels.items():
            library.impl(name, kernel, key, **options)
        yield


def filled_products(key: str) -> AbstractContextManager[None]:
    """A scope in which matrix products fill the memory that they are given, before they write to it.

    initcheck does not see what some kernels of NVIDIA's libraries write, and takes it for memory that nobody wrote to.

    Args:
        key: of PyTorch's dispatcher, 'CUDA' or 'CPU'.
    """

    def filled(kernel: Any) -> Any:
        def product(keys: Any, *arguments: Any, out: torch.Tensor, **options: Any) -> Any:
            out.zero_()
            return kernel.call_boxed(keys, *arguments, out=out, **options)

        return product

    found = {name: pytorch.kernel_of(f"aten::{name}", key) for name in _PRODUCTS}
    kernels = {name: filled(kernel) for name, kernel in found.items() if kernel is not None}
    return _replaced(kernels, key, with_keyset=True)


def products_in_float32(key: str) -> AbstractContextManager[None]:
    """A scope in which products of half types with results in float32 are computed in float32.

    racecheck breaks kernels of NVIDIA's libraries that compute them, which it was not asked to watch.

    Args:
        key: of PyTorch's dispatcher, 'CUDA' or 'CPU'.
    """

    def product(left: Tensor, right: Tensor, out_dtype: torch.dtype, *, out: Tensor | None = None) -> Tensor:
        return torch.matmul(left.to(out_dtype), right.to(out_dtype), out=out)

    def added(
        sums: Tensor, left: Tensor, right: Tensor, out_dtype: torch.dtype, *, out: Tensor, **options: Any
    ) -> Tensor:
        return torch.addmm(sums, left.to(out_dtype), right.to(out_dtype), out=out, **options)

    products = dict.fromkeys(("mm.dtype", "bmm.dtype", "mm.dtype_out", "bmm.dtype_out"), product)
    return _replaced({**products, "addmm.dtype_out": added}, key)


PRODUCTS = {"--products-filled": filled_products, "--products-in-float32": products_in_float32}


def main() -> None:
    """Runs the jobs of a file."""
    path, known, modules, encoded = pickle.loads(Path(sys.argv[1]).read_bytes())
    sys.path[:] = path
    places.remember(known)
    for module in modules:
        importlib.import_module(module)
    with PRODUCTS[sys.argv[2]]("CUDA") if len(sys.argv) > 2 else nullcontext():
        for number, job in enumerate(pickle.loads(encoded)):
            # If the tool does not work on this machine, it fails here, before the first job begins.
            torch.zeros(1, device=job.device)
            _say(number)
            _say(number, run_job(job))


if __name__ == "__main__":
    main()
