"""Writes the kernels of the recurrences that torchgraft's libraries hold, from their cells.

`python tools/recurrent_kernels.py` writes them to src/torchgraft/recurrence/cells, a folder each; with `--check` it
only says whether they are current, and exits with 1 if they are not.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from torchgraft.recurrence import Recurrence, cells

FOLDER = Path(cells.__file__).parent


def stale(*, write: bool) -> list[Path]:
    """Finds the files that are not what their cells say, and writes them if that is asked."""
    found = []
    for name in cells.NAMES:
        with TemporaryDirectory() as folder:
            Recurrence.write_kernels(f"{cells.NAMESPACE}::{name}", cells.cell(name), Path(folder))
            for made in sorted(Path(folder).iterdir()):
                path = FOLDER / name / made.name
                if path.is_file() and path.read_text() == made.read_text():
                    continue
                found.append(path)
                if write:
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(made.read_text())
    return found


def main() -> int:
    """Writes the files, or checks them."""
    is_check = "--check" in sys.argv[1:]
    found = stale(write=not is_check)
    for path in found:
        print(f"{'not current' if is_check else 'written'}: {path}")
    return int(is_check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
