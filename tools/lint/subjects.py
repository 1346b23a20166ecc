"""Finds commits whose subject is longer than 72 characters: `make lint`.

The commits are those since the last release, that is since the last tag, but none that are older than this check. In a
shallow clone only the commits that are there are checked; without git, or outside of a clone, there are none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 72


class GitError(Exception):
    """Git is not there, or has no answer."""


def ask_git(root: Path, *arguments: str) -> str:
    """The output of git in a folder.

    Raises:
        GitError: there is no git, no clone, or no such commit.
    """
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise GitError(str(error)) from None
    return done.stdout.strip()


def find_start(root: Path, check: str) -> str:
    """The commit after which subjects are checked: the last tag, or the commit that added the check if it is later.

    Args:
        root: the clone.
        check: the path of the check in it.

    Raises:
        GitError: there is no such commit.
    """
    # The boundary of a shallow clone counts as the commit that added every file.
    added = ask_git(root, "log", "--diff-filter=A", "--format=%H", "--", check).split()
    if not added:
        raise GitError(f"no commit adds {check}")
    start = added[-1]
    try:
        tag = ask_git(root, "describe", "--tags", "--abbrev=0")
        ask_git(root, "merge-base", "--is-ancestor", start, tag)
    except GitError:
        return start
    return tag


def find_long(root: Path, check: str = "tools/lint/subjects.py") -> list[str]:
    """The commits of a clone whose subject is too long, each as its hash and subject; none without a history."""
    try:
        start = find_start(root, check)
        # Commits that began beside the check, on another branch, are as old as it is.
        log = ask_git(root, "log", "--no-merges", "--ancestry-path", "--format=%h %s", f"{start}..HEAD")
    except GitError:
        return []
    return [line for line in log.splitlines() if len(line.partition(" ")[2]) > LONGEST]


def main() -> int:
    """Prints the commits; 1 if there are any."""
    found = find_long(ROOT)
    for each in found:
        length = len(each.partition(" ")[2])
        print(f"{each}: {length} characters; shorten the subject to {LONGEST}, and say the rest in the body")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
