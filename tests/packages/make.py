"""Makes the packages that later versions must still load: `python tests/packages/make.py`, once for each release.

They are what `graft new` and `graft wheel` of that release make: an operator with arguments of many kinds, and one
whose gradient is an operator too. A folder that is named after the release gets the wheels and what they were made of.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from torchgraft.authoring.new import make_package
from torchgraft.version import __version__

HERE = Path(__file__).parent
OF_MANY_KINDS = (
    "(Tensor input, Tensor? other, Tensor[] more, int n=3, SymInt[] sizes=[1, 2], float[] scales=[1.0, 2.0], *,"
    ' bool flag=False, str mode="mean", ScalarType? dtype=None, Device? device=None, float eps=1e-05)'
    " -> (Tensor, Tensor[])"
)
# What says how the kernels are made and what they mean; the rest is for who develops the package.
_KEPT = ("pyproject.toml", "README.md", "src")


def main() -> None:
    """Makes them for the version that runs."""
    folder = HERE / __version__
    if folder.exists():
        sys.exit(f"{folder} is there already, and what was released is not made again")
    folder.mkdir()
    with tempfile.TemporaryDirectory() as name:
        for made in (
            make_package("kept_kinds", Path(name), schema=OF_MANY_KINDS),
            make_package("kept_backward", Path(name), backward=True),
        ):
            # Without the names of functions, which only debuggers read.
            subprocess.run(
                [sys.executable, "-m", "torchgraft", "wheel", str(made), "--directory", str(folder)],
                env={**os.environ, "LDFLAGS": "-s"},
                check=True,
            )
            for each in made.iterdir():
                if each.name not in _KEPT:
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
            shutil.copytree(made, folder / made.name, ignore=shutil.ignore_patterns("__pycache__", "lib"))


if __name__ == "__main__":
    main()
