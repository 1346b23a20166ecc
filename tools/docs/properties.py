"""Writes the table of the properties that `graft check` asks, from what their modules say of themselves.

`python tools/docs/properties.py` writes it into docs/check/reference.md; with `--check` it only says whether it is
current, and exits with 1 if it is not.
"""

import sys

from generated import write_or_check
from torchgraft.checking import PROPERTIES, Property
from torchgraft.checking.explaining import explain_property


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


def row(name: str, each: Property) -> str:
    """A property: its name and when it is asked, what it proves, what it cannot."""
    said = explain_property(each)
    summary, proves, cannot = map(_escaped, (said.summary, said.proves, said.cannot_prove))
    notes = [
        *([f"{each.devices[0].upper()} only"] if len(each.devices) == 1 else []),
        *(["not with `--quick`"] if each.slow else []),
        *(["sanitized"] if each.sanitized else []),
    ]
    asked = f"<br>*{', '.join(notes)}*" if notes else ""
    return f"| `{name}`{asked} | **{summary}** {proves[0].upper()}{proves[1:]} | {cannot[0].upper()}{cannot[1:]} |"


def table() -> str:
    """The table."""
    rows = [row(name, each) for name, each in PROPERTIES.items()]
    return "\n".join(["| property | what it proves | what it cannot |", "| --- | --- | --- |", *rows, ""])


def main() -> int:
    """Writes, or checks, the table."""
    return write_or_check("properties", {"properties": table()})


if __name__ == "__main__":
    sys.exit(main())
