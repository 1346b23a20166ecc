"""AOTInductor compiles the operator ahead of time into a package that gives the same results.

Proves: a small sample is exported with dynamic sizes, and the exported program is compiled into a package. The loaded
package gives the results of the reference, in other sizes too.

Cannot prove: that the package runs without Python: for that, the C++ program must load the operator's library.

Mend: if `export` fails too, begin there. Otherwise the library's kernel is called by its schema from C++: compare the
types in its message with those of the schema.

Example: AOTInductor cannot compile and load it: InvalidCxxCompiler: No working C++ compiler found.
"""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import expect_served, export, fresh_compiler, in_short
from torchgraft.checking.helpers.other_sizes import in_other_sizes
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import Mismatch

_DOUBLE = """
import sys
import torch


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


device, path = sys.argv[1:]
x = torch.randn(8, device=device)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Double(), (x,)), package_path=path)
assert torch.equal(torch._inductor.aoti_load_package(package)(x), x * 2)
"""

# The code around the operator is compiled without optimization, in half the time.
_QUICKLY_COMPILED = {"aot_inductor.compile_wrapper_opt_level": "O0"}


def check(case: Case) -> None:
    """See the module."""
    # On the CPU it works wherever Inductor does.
    if case.device.type != "cpu" and not _works(str(case.device)):
        raise NotApplicable(f"PyTorch's own ahead-of-time compilation of x * 2 fails on {case.device} here")
    case.each(_check_package, case.table(small=True, empty=False)[-1:])


@functools.cache
def _works(device: str) -> bool:
    """Whether PyTorch's own can be compiled ahead of time here: on some machines the loader crashes, so not in here."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _DOUBLE, device, str(Path(folder) / "double.pt2")]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _check_package(call: Call) -> None:
    with fresh_compiler(), tempfile.TemporaryDirectory() as folder:
        program = export(call, open_sizes=True)
        try:
            path = torch._inductor.aoti_compile_and_package(
                program, package_path=str(Path(folder) / "operator.pt2"), inductor_configs=_QUICKLY_COMPILED
            )
            package = torch._inductor.aoti_load_package(path)
        except Exception as error:
            raise Mismatch(f"AOTInductor cannot compile and load it: {in_short(error)}") from error
        for each in [call, *in_other_sizes(call, numbers=False)[-1:]]:
            expect_served(each, package, "the package")


PROPERTY = Property(check, slow=True, imports=COMPILER)
