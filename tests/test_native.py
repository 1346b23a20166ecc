"""The built libraries: what they lean on, and what a missing one says."""

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

LIBRARIES = sorted((Path(torchgraft.__file__).parent / "lib").glob("*.so"))

# What a finished library may leave to others: PyTorch's stable C interface, the C and C++ runtimes, the CUDA driver.
ALLOWED = re.compile(
    r"""
    aoti_torch_\w+ | torch_\w+                  # PyTorch's stable C interface
    | _ITM_\w+ | __gmon_start__ | __cxa_\w+ | __gxx_personality_v0 | _Unwind_\w+ | __cuda\w*
    """,
    re.VERBOSE,
)
RUNTIMES = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+")
NEEDED = {
    "cpu": {"libtorch_cpu.so"},
    "cuda": {"libtorch_cpu.so", "libtorch_cuda.so"},
    "schemas": {"libtorch_cpu.so"},
}
SYSTEM = re.compile(r"(libstdc\+\+|libm|libgcc_s|libc|libpthread|libdl|librt|ld-linux[\w-]*)\.so\.\d+")


def device_of(path: Path) -> str:
    return path.stem.rpartition("_")[2]


def undefined_symbols(path: Path) -> list[tuple[str, str]]:
    """Names, and the version that each asks its library for."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        versions = elf.get_section_by_name(".gnu.version")
        needs = elf.get_section_by_name(".gnu.version_r")
        names = {aux["vna_other"]: aux.name for _, auxiliaries in needs.iter_versions() for aux in auxiliaries}
        found = []
        for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name:
                number = versions.get_symbol(index)["ndx"]
                found.append((symbol.name, names.get(number, "") if isinstance(number, int) else ""))
        return found


def test_the_cpu_library_is_built():
    assert "cpu" in {device_of(path) for path in LIBRARIES}, "run `make build`"


@pytest.mark.parametrize("path", LIBRARIES, ids=device_of)
def test_nothing_is_needed_but_the_stable_interface(path):
    symbols = undefined_symbols(path)
    # So that it is known that they were read: the library of schemas needs the fewest.
    assert len(symbols) > 15
    strangers = [name for name, version in symbols if not ALLOWED.fullmatch(name) and not RUNTIMES.match(version)]
    assert not strangers
    # No Python: one library serves every version of it.
    assert not [name for name, _ in symbols if name.startswith(("Py", "_Py"))]


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
