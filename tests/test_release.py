"""Releases: the version, the notes and the tag that `make release` makes, and the workflows that publish a tag."""

import datetime
import re
import subprocess

import pytest

import release
from test_docs import ROOT
from torchgraft.authoring.new import make_package
from torchgraft.version import __version__

DAY = datetime.date(2026, 12, 24)
CHANGELOG = """# Changelog

## 0.2.0, not yet released

- Something new
  in two lines.

### And more

- Another thing.

## 0.1.0, 2026-11-30

- The first release.
"""
NOTES = "- Something new\n  in two lines.\n\n### And more\n\n- Another thing."


def git(folder, *arguments):
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "me")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "me@example.org")
    (tmp_path / "src/torchgraft").mkdir(parents=True)
    (tmp_path / "src/torchgraft/version.py").write_text('"""The version."""\n\n__version__ = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "tests/packages/0.2.0").mkdir(parents=True)
    (tmp_path / "tests/packages/0.2.0/kept.txt").touch()
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    return tmp_path


def test_a_release_has_its_version_its_date_and_a_tag_with_its_notes(tree):
    assert release.release(tree, "0.2.0", DAY) == "v0.2.0"
    assert '__version__ = "0.2.0"' in (tree / "src/torchgraft/version.py").read_text()
    assert (tree / "CHANGELOG.md").read_text() == CHANGELOG.replace("not yet released", "2026-12-24")
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "log", "-1", "--format=%s") == "Release 0.2.0"
    assert git(tree, "rev-parse", "v0.2.0^{commit}") == git(tree, "rev-parse", "HEAD")
    assert git(tree, "tag", "--list", "--format=%(contents)", "v0.2.0") == f"torchgraft 0.2.0\n\n{NOTES}"
    release.expect_released(tree, "v0.2.0")
    with pytest.raises(release.ReleaseError, match=r"the tag must be v0\.2\.0, as .*version\.py says, got v0\.3\.0"):
        release.expect_released(tree, "v0.3.0")


def spoil(tree, what):
    changelog = tree / "CHANGELOG.md"
    if what == "changed":
        (tree / "more.txt").touch()
        return
    if what == "tagged":
        git(tree, "tag", "v0.2.0")
    elif what == "no packages":
        git(tree, "rm", "-rq", "tests/packages")
    elif what == "released":
        changelog.write_text(CHANGELOG.replace("not yet released", "2026-12-01"))
    elif what == "nothing new":
        changelog.write_text("# Changelog\n\n## 0.2.0, not yet released\n\n" + CHANGELOG[CHANGELOG.index("## 0.1.0") :])
    elif what == "no heading":
        changelog.write_text("# Changelog\n")
    git(tree, "commit", "--quiet", "--all", "--allow-empty", "--message", f"spoilt: {what}")


@pytest.mark.parametrize(
    ("what", "version", "said"),
    [
        ("", "0.2", "the version must be three numbers"),
        ("changed", "0.2.0", "commit or remove what is changed first:\n\\?\\? more.txt"),
        ("tagged", "0.2.0", "there is a tag v0.2.0 already"),
        ("no packages", "0.2.0", "there are no packages of 0.2.0 to keep: run python tests/packages/make.py"),
        ("released", "0.2.0", "the newest section of CHANGELOG.md is released: begin one"),
        ("nothing new", "0.2.0", "the newest section of CHANGELOG.md is empty"),
        ("no heading", "0.2.0", "CHANGELOG.md has no heading such as"),
    ],
)
def test_a_release_that_cannot_be_made_changes_nothing(tree, what, version, said):
    spoil(tree, what)
    before = git(tree, "rev-parse", "HEAD"), git(tree, "tag"), git(tree, "status", "--porcelain")
    with pytest.raises(release.ReleaseError, match=said):
        release.release(tree, version, DAY)
    assert (git(tree, "rev-parse", "HEAD"), git(tree, "tag"), git(tree, "status", "--porcelain")) == before


def test_a_version_without_a_date_is_not_published(tree):
    (tree / "src/torchgraft/version.py").write_text('__version__ = "0.2.0"\n')
    with pytest.raises(
        release.ReleaseError, match=r"must begin with .## 0\.2\.0, . and a date, got .## 0\.2\.0, not yet"
    ):
        release.expect_released(tree, "v0.2.0")


def test_the_changelog_of_this_tree_begins_with_its_version():
    version, _, notes = release.notes_of((ROOT / "CHANGELOG.md").read_text())
    assert version == __version__
    assert notes.startswith("- ")


@pytest.mark.parametrize("whose", ["torchgraft", "a package"])
def test_a_workflow_publishes_tags_by_trust_and_holds_no_password(whose, tmp_path):
    own = ROOT / ".github/workflows/release.yml"
    text = (
        own if whose == "torchgraft" else make_package("trusted", tmp_path) / ".github/workflows/publish.yml"
    ).read_text()
    assert re.search(r'^on:\n  push:\n    tags: \["v\*"\]\n\npermissions:\n  contents: read\n', text, re.MULTILINE)
    assert "secrets." not in text
    build, publish = re.split(r"^  publish:$", text, flags=re.MULTILINE)
    assert "container: quay.io/pypa/manylinux_2_28_x86_64" in build
    # What can publish does not run what is built, and what builds cannot publish.
    assert "id-token" not in build
    assert "- run:" not in publish.partition("\n  notes:")[0]
    assert "environment: pypi" in publish
    assert "      id-token: write\n      attestations: write\n" in publish
    uses = re.findall(r"uses: (\S+)@", publish.partition("\n  notes:")[0])
    assert uses == ["actions/download-artifact", "actions/attest-build-provenance", "pypa/gh-action-pypi-publish"]


def test_a_package_tags_the_version_of_its_pyproject(tmp_path):
    folder = make_package("tagged_once", tmp_path)
    git(folder, "init", "--quiet")
    for name, value in (("user.name", "me"), ("user.email", "me@example.org")):
        git(folder, "config", name, value)
    refused = subprocess.run(
        ["make", "--no-print-directory", "release"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert "commit or remove what is changed first" in refused.stdout
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    done = subprocess.run(
        ["make", "--no-print-directory", "release"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout == "made v0.1.0; to publish it: git push origin HEAD v0.1.0\n"
    assert git(folder, "tag", "--list", "--format=%(contents)", "v0.1.0") == "tagged_once 0.1.0"
