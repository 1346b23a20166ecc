"""Reports of sanitizers in short: what happened, and where in the operator's own sources."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchgraft.checking.result import Result

# So many lines of a report are kept: what happened, where, and what is known of the memory.
REPORT_LINES = 6
# So many places of a stack in the operator's own sources are kept.
_FRAMES = 2
_ACCESS = re.compile(
    r"(?:Previous )?(?:atomic )?(?:read|write) of size .*|\S+ is located .*|Location is .*", re.IGNORECASE
)


def explain_report(result: Result, begins: re.Pattern[str], folder: Path) -> Result:
    """Rewrites the failure of a result so that it says what a sanitizer reported; returns others as they are.

    Args:
        result: of a job under the sanitizer.
        begins: how its reports begin.
        folder: of the operator's sources.
    """
    failure = result.failure
    if failure is None or begins.search(failure.traceback) is None:
        return result
    message, *others = _in_short(failure.traceback.splitlines(), begins, folder)
    at = failure.message.partition(", while at ")[2]
    message = f"{message}, while at {at}" if at else message
    return replace(result, failure=replace(failure, message=message, traceback="\n".join(others)))


def _in_short(lines: Sequence[str], begins: re.Pattern[str], folder: Path) -> list[str]:
    """Shortens a report to what stays the same from run to run: what happened, and where in the operator's sources."""
    first = next(number for number, line in enumerate(lines) if begins.search(line))
    message = re.sub(r"^==\d+==|WARNING: |ERROR: | on (unknown )?address .*| \(pid=\d+\)", "", lines[first].strip())
    kept = [message.replace(f"{folder}{os.sep}", "")]
    frames = 0
    for line in lines[first + 1 :]:
        if line.startswith("SUMMARY") or len(kept) > REPORT_LINES:
            break
        if frame := re.search(rf"#\d+ .*{re.escape(str(folder))}{os.sep}(\S+):(\d+)", line):
            frames += 1
            if frames <= _FRAMES:
                kept.append(f"  {frame[1]}:{frame[2]}: {_source_line(folder / frame[1], int(frame[2]))}")
        elif heading := _ACCESS.search(line):
            frames = 0
            access = re.sub(r"^0x[0-9a-f]+ is located", "the place is", heading[0])
            kept.append(re.sub(r"( at)? 0x[0-9a-f]+| \[.*", "", access))
    return kept


def _source_line(path: Path, number: int) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""
