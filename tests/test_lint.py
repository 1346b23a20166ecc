"""The checks of `make lint` beside the linters: first words of docstrings, and lengths of commit subjects."""

import os
import subprocess

import pytest

import docstrings
import subjects


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""What a module holds."""', [(1, "What")]),
        ("'''\n    Of a network: its layers.\n    '''", [(1, "Of")]),
        ('class A:\n    """That which is."""', [(2, "That")]),
        ('class A:\n    def f(self):\n        """As `g`."""', [(3, "As")]),
        ('async def f():\n    """As, in turn."""', [(2, "As")]),
        ('def f():\n    r"""What: \\d."""', [(2, "What")]),
        ('def f():\n    def g():\n        """Of h."""', [(3, "Of")]),
        ('"""Whatever is asked."""', []),
        ('"""Offsets of rows."""', []),
        ('"""Asks for what is there."""', []),
        ('def f():\n    """The sum: what a gives."""', []),
        ('def f():\n    """"""', []),
        ('text = """What is no docstring."""', []),
        ("def f():\n    # What a comment says.\n    return 1", []),
        ("", []),
    ],
)
def test_a_docstring_does_not_begin_with_a_word_that_hides_the_noun(text, found):
    assert list(docstrings.find_in(text)) == found


def test_files_and_folders_are_held_and_a_path_that_is_gone_is_an_error(tmp_path):
    (tmp_path / "held/below").mkdir(parents=True)
    for name in ("held/below/a.py", "alone.py", "free.py"):
        (tmp_path / name).write_text('"""What it is."""\n')
    assert [each.partition(": ")[::2] for each in docstrings.find(tmp_path, ["held", "alone.py", "gone"])] == [
        ("held/below/a.py:1", "begin with a verb, or with the noun that is returned, not with 'What'"),
        ("alone.py:1", "begin with a verb, or with the noun that is returned, not with 'What'"),
        ("gone", "is not there; correct HELD in tools/lint/docstrings.py"),
    ]


def test_all_that_is_held_holds():
    assert docstrings.find(docstrings.ROOT, docstrings.HELD) == []


LONG = "a subject of " + "x" * 60
CHECK = "lint/subjects.py"


@pytest.fixture
def git(tmp_path):
    """`git(*arguments)` in a new clone; `git.commit(subject)` commits, and adds the check where its name is given."""
    folder = tmp_path / "clone"
    folder.mkdir()
    # Nothing of the machine's own settings.
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_NAME": "a", f"GIT_{role}_EMAIL": "a@b.c"}

    def run(*arguments):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=environment)

    def commit(subject, adds=""):
        if adds:
            (folder / adds).parent.mkdir(exist_ok=True)
            (folder / adds).write_text("")
            run("add", adds)
        run("commit", "--allow-empty", "-m", subject)

    run("init", "-b", "main")
    run.commit, run.folder = commit, folder
    return run


def find_long(folder):
    return [each.partition(" ")[2] for each in subjects.find_long(folder, CHECK)]


def test_subjects_behind_the_check_are_short(git):
    git.commit(LONG + " before")
    git.commit("adds the check", adds=CHECK)
    assert find_long(git.folder) == []
    git.commit("x" * 72)
    git.commit("é" * 72)
    git.commit("two lines of\n" + "a subject " * 7)
    git.commit("a body may be longer\n\n" + LONG * 3)
    git.commit(LONG)
    assert find_long(git.folder) == [LONG, "two lines of " + ("a subject " * 7).strip()]


def test_a_release_begins_anew_and_a_tag_before_the_check_does_not(git):
    git.commit("first")
    git("tag", "v0.1.0")
    git.commit(LONG + " before")
    git.commit("adds the check", adds=CHECK)
    git.commit(LONG)
    assert find_long(git.folder) == [LONG]
    git("tag", "v0.2.0")
    assert find_long(git.folder) == []
    git.commit(LONG + " again")
    assert find_long(git.folder) == [LONG + " again"]


def test_a_branch_that_began_before_the_check_may_be_merged(git):
    git.commit("first")
    git("branch", "beside")
    git.commit("adds the check", adds=CHECK)
    git("switch", "beside")
    git.commit(LONG)
    git("switch", "main")
    git("merge", "--no-ff", "-m", "merge: " + LONG, "beside")
    assert find_long(git.folder) == []


@pytest.mark.parametrize(("depth", "found"), [(1, []), (2, [LONG]), (3, [LONG]), (5, [LONG])])
def test_a_shallow_clone_is_asked_about_what_it_has(git, tmp_path, depth, found):
    git.commit(LONG + " before")
    git.commit("adds the check", adds=CHECK)
    git.commit("between")
    git.commit(LONG)
    shallow = tmp_path / "shallow"
    git("clone", "--depth", str(depth), f"file://{git.folder}", str(shallow))
    assert find_long(shallow) == found


def test_without_git_nothing_is_asked(git, tmp_path, monkeypatch):
    assert find_long(tmp_path) == []
    assert find_long(git.folder) == []
    git.commit("a clone of something else")
    assert find_long(git.folder) == []
    monkeypatch.setenv("PATH", "")
    assert find_long(git.folder) == []
