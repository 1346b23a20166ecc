"""Makes a release of torchgraft here: its version, its notes and its tag. It pushes nothing.

`python tools/release.py 0.1.0` writes the version into src/torchgraft/version.py and the date into the heading of
CHANGELOG.md, commits both, and makes the tag v0.1.0, whose message is that section of CHANGELOG.md. Whoever pushes the
tag has .github/workflows/release.yml publish it.

`python tools/release.py --check v0.1.0` says whether a tag is the version of this tree, with a date in CHANGELOG.md; it
needs nothing but Python.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = "src/torchgraft/version.py"
CHANGELOG = "CHANGELOG.md"
_HEADING = re.compile(r"^## (\S+), (not yet released|\d{4}-\d\d-\d\d)\n", re.MULTILINE)
_VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)


class ReleaseError(Exception):
    """No release can be made of this tree; the message says why and what to do."""


def notes_of(changelog: str) -> tuple[str, str, str]:
    """Returns the version of the newest section of a changelog, its date or 'not yet released', and its text."""
    headings = list(_HEADING.finditer(changelog))
    if not headings:
        raise ReleaseError(f"{CHANGELOG} has no heading such as '## 0.1.0, not yet released'")
    end = headings[1].start() if headings[1:] else len(changelog)
    return headings[0][1], headings[0][2], changelog[headings[0].end() : end].strip()


def expect_released(root: Path, tag: str) -> None:
    """Raises ReleaseError unless a tag is the version of a tree, with a date in its changelog."""
    found = _VERSION.search((root / VERSION).read_text())
    version = found[1] if found else ""
    newest, date, _ = notes_of((root / CHANGELOG).read_text())
    if tag != f"v{version}":
        raise ReleaseError(f"the tag must be v{version}, as {VERSION} says, got {tag}")
    if newest != version or not date[0].isdigit():
        raise ReleaseError(f"{CHANGELOG} must begin with '## {version}, ' and a date, got '## {newest}, {date}'")


def release(root: Path, version: str, date: datetime.date) -> str:
    """Commits and tags a version of a tree, and returns the tag.

    Raises:
        ReleaseError: something is not as a release needs it; nothing was changed.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ReleaseError(f"the version must be three numbers, such as 0.1.0, got {version!r}")
    tag = f"v{version}"
    if changed := _git(root, "status", "--porcelain"):
        raise ReleaseError(f"commit or remove what is changed first:\n{changed}")
    if _git(root, "tag", "--list", tag):
        raise ReleaseError(f"there is a tag {tag} already: a release is never made twice")
    if not (root / "tests/packages" / version).is_dir():
        raise ReleaseError(f"there are no packages of {version} to keep: run python tests/packages/make.py, and commit")
    changelog = (root / CHANGELOG).read_text()
    _, state, notes = notes_of(changelog)
    if state != "not yet released":
        raise ReleaseError(
            f"the newest section of {CHANGELOG} is released: begin one, '## {version}, not yet released'"
        )
    if not notes:
        raise ReleaseError(f"the newest section of {CHANGELOG} is empty: say what is new")
    (root / CHANGELOG).write_text(_HEADING.sub(f"## {version}, {date}\n", changelog, count=1))
    (root / VERSION).write_text(_VERSION.sub(f'__version__ = "{version}"', (root / VERSION).read_text()))
    _git(root, "commit", "--quiet", "--all", "--message", f"Release {version}")
    # Lines that begin with # are headings here, and not comments.
    message = f"torchgraft {version}\n\n{notes}\n"
    _git(root, "tag", "--annotate", "--cleanup=verbatim", "--message", message, tag)
    return tag


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def main() -> int:
    """Makes a release, or checks a tag."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="such as 0.1.0")
    parser.add_argument("--check", metavar="TAG")
    options = parser.parse_args()
    if (options.version is None) == (options.check is None):
        parser.error("give a version, or --check and a tag")
    try:
        if options.check is not None:
            expect_released(ROOT, options.check)
            return 0
        tag = release(ROOT, options.version, datetime.date.today())
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"made {tag}; to publish it: git push origin HEAD {tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
