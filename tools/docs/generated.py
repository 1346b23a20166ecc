"""How the scripts of this folder write what they make, or check that it is current."""

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def write_or_check(script: str, files: Mapping[Path, str]) -> int:
    """Writes the files that are not current; with `--check` only says which, and gives 1 where there are any."""
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            name = path.relative_to(ROOT)
            print(f"{name}: not current; run `python tools/docs/{script}.py` and `python tools/docs/include.py`")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(files[path])
    return 0
