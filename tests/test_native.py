"""The built libraries: what they lean on, and what a missing one says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

import torchgraft
from test_docs import ROOT
from torchgraft import building, native
from torchgraft.authoring import proving, wheel

LIBRARIES = sorted((Path(torchgraft.__file__).parent / "lib").glob("*.so"))

NEEDED = {
    "cpu": {"libtorch_cpu.so"},
    "cuda": {"libtorch_cpu.so", "libtorch_cuda.so"},
    "schemas": {"libtorch_cpu.so"},
}
SYSTEM = re.compile(r"(libstdc\+\+|libm|libgcc_s|libc|libpthread|libdl|librt|ld-linux[\w-]*)\.so\.\d+")


def device_of(path: Path) -> str:
    return path.stem.rpartition("_")[2]


def test_the_cpu_library_is_built():
    assert "cpu" in {device_of(path) for path in LIBRARIES}, "run `make build`"


@pytest.mark.parametrize("path", LIBRARIES, ids=device_of)
def test_nothing_is_needed_but_the_stable_interface(path):
    needed, _ = wheel._needed_symbols(path)
    # So that it is known that they were read: the library of schemas needs the fewest.
    assert len(needed) > 15
    assert wheel.unstable_symbols([path]) == {}


def test_what_another_library_of_the_wheel_defines_may_be_needed(tmp_path):
    texts = {
        "first": 'extern "C" { int PyTuple_Size(); int of_second(); int f() { return PyTuple_Size() + of_second(); } }',
        "second": 'namespace at { int add(); }\nextern "C" int of_second() { return at::add(); }',
    }
    paths = []
    for name, text in texts.items():
        paths.append(tmp_path / f"{name}.so")
        command = [*os.environ.get("CXX", "c++").split(), "-shared", "-fPIC", "-x", "c++", "-", "-o", str(paths[-1])]
        subprocess.run(command, input=text, text=True, check=True)
    first, second = paths
    assert wheel.unstable_symbols(paths) == {first: ["PyTuple_Size"], second: ["_ZN2at3addEv"]}
    assert wheel.unstable_symbols([first])[first] == ["PyTuple_Size", "of_second"]
    said = proving._unstable(second, ["_ZN2at3addEv", "a", "b", "c", "d"])
    assert said.startswith("second.so: it needs at::add(), a, b, and 2 more, outside of PyTorch's stable ABI:")
    # No library at all.
    (tmp_path / "text.so").write_text("text")
    assert wheel.unstable_symbols([tmp_path / "text.so"]) == {}


def test_what_python_and_pytorch_keep_for_themselves_is_seen():
    found = wheel.unstable_symbols([Path(torch._C.__file__).parent / "lib/libtorch_python.so"])
    [names] = found.values()
    assert "PyTuple_New" in names
    assert any(name.startswith("_ZN2at") for name in names)
    assert not any(name.startswith(("aoti_torch_", "_ZNSs")) for name in names)


@pytest.mark.parametrize("path", LIBRARIES, ids=device_of)
def test_pytorch_is_named_as_a_dependency_and_no_path_is(path):
    with path.open("rb") as file:
        tags = list(next(s for s in ELFFile(file).iter_sections() if isinstance(s, DynamicSection)).iter_tags())
        needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        assert not [tag for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")]
    assert NEEDED[device_of(path)] <= needed
    assert all(SYSTEM.fullmatch(name) for name in needed - NEEDED[device_of(path)])


TOLD_BY_PYTHON = "torchgraft_set_products"


@pytest.mark.parametrize("path", LIBRARIES, ids=device_of)
def test_nothing_is_exported_that_could_clash(path):
    with path.open("rb") as file:
        exported = [
            symbol.name
            for symbol in ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
        ]
    # By the last the package tells its library a precision, past the dispatcher.
    assert not [name for name in exported if not name.startswith(("_init", "_fini")) and name != TOLD_BY_PYTHON]


def test_the_libraries_of_this_package_are_loaded_where_they_can_be():
    loaded = {library.device: library for library in native.libraries() if library.namespace == "torchgraft"}
    assert loaded["cpu"].loaded, loaded["cpu"].problem
    if torch.cuda.is_available():
        assert loaded["cuda"].loaded, loaded["cuda"].problem


@pytest.mark.parametrize(("state", "folder"), [("editable", ROOT / "src/torchgraft/lib"), ("wheel", "torchgraft/lib")])
def test_an_editable_install_puts_the_libraries_beside_the_sources(state, folder, tmp_path):
    # As scikit-build-core configures a build; nothing is compiled or installed.
    options = {"SKBUILD_STATE": state, "TORCHGRAFT_CUDA": "OFF", "Python_EXECUTABLE": sys.executable}
    options["CMAKE_MAKE_PROGRAM"] = building.find_tool("ninja")
    configure = [building.find_tool("cmake"), "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja"]
    subprocess.run(
        [*configure, *(f"-D{name}={value}" for name, value in options.items())],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    installed = (tmp_path / "cmake_install.cmake").read_text()
    place = folder if state == "editable" else f"${{CMAKE_INSTALL_PREFIX}}/{folder}"
    assert f'DESTINATION "{place}"' in installed


def test_a_missing_or_broken_library_is_a_reason_and_no_error(tmp_path):
    native.load("absent", tmp_path)
    assert "does not exist" in native.why_no_kernel("absent", "cpu")
    (tmp_path / "broken_cpu.so").write_text("not a library")
    native.load("broken", tmp_path)
    assert "did not load" in native.why_no_kernel("broken", "cpu")
    assert native.why_no_kernel("nobody", "cpu").startswith("nobody has no kernels for cpu: ")
    if torch.version.cuda is None:
        assert "built without CUDA" in native.why_no_kernel("absent", "cuda")


def test_a_missing_library_says_who_builds_it(tmp_path):
    native.load("absent", tmp_path)
    ours, theirs = (native._how_to_build(name, "cuda", tmp_path / "x_cuda.so") for name in ("torchgraft", "absent"))
    assert ours == "build it with `make build`, or install nvcc and reinstall torchgraft"
    assert theirs == f"build it with torchgraft.building.build('absent', [its sources], '{tmp_path}', cuda=True)"
    assert "make build" not in native.why_no_kernel("absent", "cpu")
    assert f"build it with torchgraft.building.build('absent', [its sources], '{tmp_path}')" in native.why_no_kernel(
        "absent", "cpu"
    )


def test_a_pytorch_that_is_too_old_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    native.load("ancient", tmp_path)
    assert "PyTorch 2.9.1+cpu is older than 2.11" in native.why_no_kernel("ancient", "cpu")
