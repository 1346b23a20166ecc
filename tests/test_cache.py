"""The cache of compiled kernels: the right ones for whoever asks, whoever else asks, dies, or breaks what is there."""

import fcntl
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchgraft import building
from torchgraft.building import BuildError, build_once, cache
from torchgraft.building import compile as compiling

# Makes an entry in a while, as a compiler does, and prints what it then finds there. Without the package, which takes a
# second to import.
PROGRAM = """
import importlib.util, sys, time

spec = importlib.util.spec_from_file_location("cache", sys.argv[3])
cache = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache)

def make(directory):
    with open(sys.argv[1], "a") as made:
        made.write("made\\n")
    for part in range(5):
        (directory / "library.so").open("a").write(f"part {part}\\n")
        time.sleep(float(sys.argv[2]) / 5)

print((cache.keep("key", make) / "library.so").read_text().count("part"))
"""


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path / "cache"))
    cache._own_folder.cache_clear()
    return tmp_path / "cache"


def start(tmp_path, seconds):
    arguments = [str(tmp_path / "made"), str(seconds), cache.__file__]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, text=True)


def made(text="compiled"):
    """A function that fills an entry, and counts how often it did."""

    def make(directory: Path) -> None:
        make.calls += 1
        (directory / "library.so").write_text(text)

    make.calls = 0
    return make


def never(directory: Path) -> None:
    pytest.fail("it is there already")


def test_what_is_made_is_found_by_others_and_not_made_again(root):
    assert cache.find("key") is None
    place = cache.keep("key", made())
    assert place == cache.find("key") == cache.keep("key", never)
    assert (place / "library.so").read_text() == "compiled"
    assert cache.keep("other", made("another")) != place
    assert (root / "made").stat().st_mode & 0o777 == 0o700


def test_eight_processes_make_it_once_and_all_find_it_whole(tmp_path):
    processes = [start(tmp_path, 0.5) for _ in range(8)]
    assert [process.communicate()[0].strip() for process in processes] == ["5"] * 8
    assert (tmp_path / "made").read_text() == "made\n"


def test_who_is_killed_leaves_nothing_that_is_taken_and_nobody_waiting(tmp_path, root):
    for seconds in (0.05, 0.15, 0.3):
        process = start(tmp_path, 0.4)
        while not (tmp_path / "made").exists():
            time.sleep(0.005)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        (tmp_path / "made").unlink()
        assert cache.find("key") is None
    assert start(tmp_path, 0).communicate()[0].strip() == "5"
    left = list((root / "making").iterdir())
    assert len(left) == 3
    for each in left:
        os.utime(each, (0, 0))
    cache.keep("other", made())
    assert not list((root / "making").iterdir())


@pytest.mark.parametrize("content", ["", "compil", None], ids=["empty", "cut off", "gone"])
def test_what_was_broken_is_made_again(content):
    place = cache.keep("key", made())
    library = place / "library.so"
    if content is None:
        library.unlink()
    else:
        library.write_text(content)
    assert cache.find("key") is None
    assert (cache.keep("key", made()) / "library.so").read_text() == "compiled"
    assert cache.keep("key", never) == place


def test_what_fails_is_not_kept_and_the_next_one_tries(root):
    def fail(directory):
        (directory / "library.so").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        cache.keep("key", fail)
    assert cache.find("key") is None
    assert not list((root / "making").iterdir())
    cache.keep("key", made())


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_nothing_is_taken_from_where_others_may_write(root, mode):
    cache.keep("key", made("theirs"))
    (root / "made").chmod(mode)
    assert cache.find("key") is None
    with pytest.warns(
        RuntimeWarning, match="others may write to .*made, so compiled kernels are kept for this process"
    ):
        place = cache.keep("key", made())
    assert (place / "library.so").read_text() == "compiled"


def test_of_another_users_folder_nothing_is_taken(root, monkeypatch):
    cache.keep("key", made("theirs"))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(
        RuntimeWarning, match="belongs to another user, so compiled kernels are kept for this process only"
    ):
        place = cache.keep("key", make := made())
    assert not place.is_relative_to(root)
    assert cache.keep("key", never) == place
    assert make.calls == 1


def test_where_no_folder_can_be_made_it_is_made_for_this_process(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path / "file/cache"))
    with pytest.warns(RuntimeWarning, match="cannot be written: Not a directory"):
        place = cache.keep("key", made())
    assert (place / "library.so").read_text() == "compiled"
    assert cache.keep("key", never) == place


def test_what_nobody_took_for_long_goes(root):
    for key in ("old", "new"):
        cache.keep(key, made())
    os.utime(root / "made/old/content.json", (0, 0))
    assert cache.keep("new", never)
    cache.keep("more", made())
    assert cache.find("old") is None
    assert cache.find("new") is not None


def test_an_environment_that_nobody_took_for_a_month_goes(root):
    def make(place):
        place.mkdir()
        (place / "python").touch()

    ages = {"old": 31, "young": 29, "asked for": 31, "in use": 31, ".making-left": 2}
    old, young, asked_for, in_use, _ = places = [cache.keep_environment(name, make) for name in ages]
    for place, days in zip(places, ages.values(), strict=True):
        then = time.time() - days * 86400
        os.utime(place, (then, then))
    assert cache.keep_environment("asked for", lambda place: pytest.fail("it is there already")) == asked_for
    with (root / "locks/in use").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache.keep("more", made())
    assert sorted((root / "environments").iterdir()) == sorted([young, asked_for, in_use])
    # It is made anew for whoever asks.
    assert (cache.keep_environment("old", make) / "python").is_file()
    assert not in_use.exists()
    assert old.exists()


def test_two_processes_make_an_environment_once(root, tmp_path):
    program = PROGRAM.replace('cache.keep("key", make)', 'cache.keep_environment("key", make)').replace(
        "    for part", "    directory.mkdir()\n    for part"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "made"), "0.5", cache.__file__]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in processes] == ["5"] * 2
    assert (tmp_path / "made").read_text() == "made\n"


class TestIdentity:
    @pytest.fixture
    def source(self, tmp_path):
        folder = tmp_path / "one"
        folder.mkdir()
        (folder / "inner.h").write_text("// inner")
        (folder / "outer.h").write_text('#include "inner.h"')
        (folder / "cpu.cpp").write_text('#include "outer.h"\n  #  include <vector>\nint x;')
        return folder / "cpu.cpp"

    def identity(self, *sources, **options):
        return compiling._identity("name", sources, {"sanitizer": None, "cuda": False, "native": False, **options})

    def test_it_is_of_bytes_and_not_of_paths_or_times(self, source, tmp_path):
        found = self.identity(source)
        os.utime(source, (0, 0))
        assert self.identity(source) == found
        moved = source.parent.rename(tmp_path / "two") / source.name
        assert self.identity(moved) == found

    @pytest.mark.parametrize("name", ["cpu.cpp", "outer.h", "inner.h"])
    def test_each_file_that_is_included_counts(self, source, name):
        found = self.identity(source)
        path = source.parent / name
        path.write_text(path.read_text() + " ")
        assert self.identity(source) != found

    def test_a_header_that_a_macro_names_counts(self, source):
        source.write_text('#define HEADER "named.h"\n#include HEADER\n')
        (source.parent / "named.h").write_text("// one")
        found = self.identity(source)
        (source.parent / "named.h").write_text("// two")
        assert self.identity(source) != found

    def test_headers_of_the_package_count_and_byte_code_does_not(self, source, monkeypatch, tmp_path):
        package = tmp_path / "package"
        header, module = package / "include/torchgraft/header.h", package / "cmake/module.py"
        for path in (header, module):
            path.parent.mkdir(parents=True)
            path.write_text("")
        monkeypatch.setattr(compiling, "__file__", str(package / "building/compile.py"))
        found = self.identity(source)
        py_compile.compile(str(module))
        assert list(module.parent.glob("*/*.pyc"))
        assert self.identity(source) == found
        module.write_text("# changed")
        changed = self.identity(source)
        header.write_text("// changed")
        assert len({found, changed, self.identity(source)}) == 3

    def test_how_it_is_compiled_counts(self, source, monkeypatch, tmp_path):
        found = {self.identity(source), self.identity(source, native=True), self.identity(source, sanitizer="address")}
        monkeypatch.setenv("CXXFLAGS", "-DX")
        found.add(self.identity(source))
        compiler = tmp_path / "compiler"
        compiler.write_text("#!/bin/sh\necho another 1.0\n")
        compiler.chmod(0o755)
        monkeypatch.setenv("CXX", str(compiler))
        found.add(self.identity(source))
        assert len(found) == 5


def test_compiling_may_be_forbidden(tmp_path, monkeypatch):
    source = tmp_path / "cpu.cpp"
    source.write_text("int x;")
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    with pytest.raises(BuildError, match=r"forbidden has no compiled library in .*, and TORCHGRAFT_JIT=0 forbids"):
        build_once("forbidden", [source])
    monkeypatch.delenv("TORCHGRAFT_JIT")

    def built(namespace, sources, directory, **options):
        (directory / "build").mkdir()
        (directory / "forbidden_cpu.so").write_text("library")

    monkeypatch.setattr(compiling, "build", built)
    place = build_once("forbidden", [source])
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    assert build_once("forbidden", [source]) == place
    assert sorted(path.name for path in place.iterdir()) == ["content.json", "forbidden_cpu.so"]


def test_sources_go_before_the_libraries_beside_them_where_they_can_be_compiled(tmp_path, monkeypatch):
    source, library = tmp_path / "cpu.cpp", tmp_path / "lib/edited_cpu.so"
    library.parent.mkdir()
    library.write_text("old")
    loaded = []
    monkeypatch.setattr(
        compiling.native, "load", lambda namespace, folder, **_: loaded.append((folder / library.name).read_text())
    )

    def built(namespace, sources, directory, **options):
        (directory / "build").mkdir()
        (directory / library.name).write_text(sources[0].read_text())

    monkeypatch.setattr(compiling, "build", built)
    # As in a wheel.
    building.load("edited", [source])
    for text in ("first", "edited"):
        source.write_text(text)
        building.load("edited", [source])
    assert loaded == ["old", "first", "edited"]

    source.write_text("edited again")
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    with pytest.warns(
        RuntimeWarning, match=r"edited: torchgraft uses the libraries in .*lib\. .*TORCHGRAFT_JIT=0 forbids"
    ):
        building.load("edited", [source])
    monkeypatch.delenv("TORCHGRAFT_JIT")

    def refuse(*_, **__):
        raise building.MissingToolError("there is no C++ compiler")

    monkeypatch.setattr(compiling, "build", refuse)
    with pytest.warns(RuntimeWarning, match="cannot be compiled here: there is no C.. compiler"):
        building.load("edited", [source])
    assert loaded[3:] == ["old", "old"]
    library.unlink()
    with pytest.raises(building.MissingToolError):
        building.load("edited", [source])


def test_what_does_not_compile_is_told_with_all_that_the_compiler_said(tmp_path, root):
    source = tmp_path / "cpu.cpp"
    source.write_text("int x = nothing;\n")
    with pytest.raises(BuildError, match=r"cpu.cpp:1:9: error: .*nothing.* was not declared") as raised:
        build_once("failing", [source])
    log = Path(str(raised.value).rpartition("(all of it: ")[2].rstrip(")"))
    assert log.parent == root / "making"
    assert "nothing" in log.read_text()
    assert list((root / "making").iterdir()) == [log]
    os.utime(log, (0, 0))
    cache.keep("key", made())
    assert not log.exists()


# In namespaces of its own a process may mount what it likes.
ALONE = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.mark.skipif(
    shutil.which(ALONE[0]) is None
    or subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this system gives no namespaces",
)
@pytest.mark.parametrize("size", ["60k", "260k"], ids=["before the compiler", "while it compiles"])
def test_a_full_disk_is_told_and_nothing_is_kept(tmp_path, root, size):
    source, script = tmp_path / "cpu.cpp", tmp_path / "build.sh"
    source.write_text("#include <torchgraft/cpu.h>\n")
    root.mkdir()
    build = (
        "import sys, pathlib; from torchgraft import building; building.build_once('full', [pathlib.Path(sys.argv[1])])"
    )
    script.write_text(
        f"mount -t tmpfs -o size={size} tmpfs {root}\n{sys.executable} -c {build!r} {source}\nls {root}/made\n"
    )
    done = subprocess.run([*ALONE, "sh", script], capture_output=True, text=True, check=False)
    assert re.search(
        r"BuildError: full cannot be built: .*No space left on device.*\n.*Free some space", done.stderr
    ), done
    assert done.stdout == ""


def test_cuda_without_a_source_for_it_is_told(tmp_path):
    source = tmp_path / "cpu.cpp"
    source.write_text("int x;")
    with pytest.raises(BuildError, match=r"no_cuda: with cuda=True, sources must hold a \.cu file, got .*cpu\.cpp"):
        building.build("no_cuda", [source], tmp_path, cuda=True)
