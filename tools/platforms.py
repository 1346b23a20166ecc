"""Asks other compilers, for platforms that nobody here has, whether the sources of the CPU libraries compile.

`python tools/platforms.py` asks all that are installed, a minute or two each, and writes docs/platforms.json, of which
`tools/docs/support.py` makes a table. With names of platforms it asks for those alone. Nothing is linked, and nothing
runs: a compiler for another platform knows the size of `long` there and the headers that are missing, and no more.

Where CMake built libraries with such a compiler, `--built FOLDER` keeps their names with the one platform that is
named, and where these ran, `--checked REPORT` the counts of a report of `graft check --json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torchgraft.machine.figures import as_json

ROOT = Path(__file__).parents[1]
WRITTEN = ROOT / "docs/platforms.json"
# What C++ programs include that call operators, beside the libraries.
_PROGRAM = "".join(f"#include <torchgraft/{name}.h>\n" for name in ("calling", "loaded", "operators"))
# Apple's headers that PyTorch's headers and libc++ ask for, as far as they do. The first says of what system the target
# is, the second declares functions of Apple's C library, which glibc has as macros that libc++ cannot use.
_OF_APPLE = {
    "TargetConditionals.h": "#define TARGET_OS_MAC 1\n#define TARGET_OS_OSX 1\n#define TARGET_OS_IPHONE 0\n",
    "xlocale.h": """
#include <ctype.h>
#include <locale.h>
#include <stddef.h>
#undef isdigit_l
#undef isxdigit_l
extern "C" {
int asprintf_l(char**, locale_t, const char*, ...);
int snprintf_l(char*, size_t, locale_t, const char*, ...);
int sscanf_l(const char*, locale_t, const char*, ...);
lconv* localeconv_l(locale_t);
}
""",
}
_ERROR = re.compile(r"error: (.*)")


@dataclass(frozen=True)
class Target:
    """A platform, and how it is asked for.

    Attributes:
        compilers: names of the program, the newest first; the first that is installed is asked.
        options: after those that CMake gives the compiler of this machine.
        without: options of CMake's that the compiler does not know for this platform.
        stand_ins: headers of the platform's that are written for the question, as they are not to be had.
        headers: what stands for the platform's own headers, in words.
    """

    compilers: tuple[str, ...]
    options: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    headers: str = ""


_CLANG = tuple(f"clang++{version}" for version in ("", "-21", "-20", "-19", "-18", "-17", "-16"))
_LIBCXX = "/usr/lib/llvm-{version}/include/c++/v1"
TARGETS = {
    "Linux on x86-64, GCC": Target(("g++",), headers="libstdc++, glibc"),
    "Linux on x86-64, clang": Target(_CLANG, headers="libstdc++, glibc"),
    "Linux on x86-64, clang for this machine": Target(
        _CLANG, ("-DTORCHGRAFT_X86_64_LEVEL=4",), headers="libstdc++, glibc"
    ),
    "Linux on x86-64, clang and libc++": Target(_CLANG, ("-stdlib=libc++",), headers="libc++, glibc"),
    "Linux on aarch64, GCC": Target(("aarch64-linux-gnu-g++",), headers="libstdc++, glibc"),
    "macOS on arm64, clang": Target(
        _CLANG,
        # glibc has another __nonnull than clang has for Apple.
        (
            *("--target=arm64-apple-macosx13", "-stdlib=libc++", "-nostdinc++", "-isystem", _LIBCXX),
            *("-isystem", "/usr/aarch64-linux-gnu/include", "-D_GNU_SOURCE", "-U__nonnull"),
        ),
        stand_ins=_OF_APPLE,
        headers="libc++; glibc in the place of Apple's C library",
    ),
    "Windows on x86-64, MinGW-w64": Target(
        ("x86_64-w64-mingw32-g++-posix",), without=("-fPIC",), headers="libstdc++, MinGW-w64"
    ),
    "Windows on x86-64, clang": Target(
        _CLANG, ("--target=x86_64-w64-windows-gnu",), without=("-fPIC",), headers="libstdc++, MinGW-w64"
    ),
}


@dataclass(frozen=True)
class Asked:
    """Answers of a compiler about the sources.

    Attributes:
        platform: and the kind of compiler.
        compiler: the first line of what it says of itself.
        headers: the standard libraries that it had.
        date: the day.
        sources: how many it was asked for, warnings being errors.
        compiled: how many of them compile.
        errors: the first error of each source that does not, and of how many it is the first.
        program: whether what C++ programs include compiles: the first error, or nothing.
        built: names of the libraries that CMake built and linked with this compiler; empty if nobody has.
        checked: what `graft check` found with such libraries; empty if nobody has asked.
    """

    platform: str
    compiler: str
    headers: str
    date: str
    sources: int
    compiled: int
    errors: dict[str, int]
    program: str
    built: list[str] = field(default_factory=list)
    checked: dict[str, Any] = field(default_factory=dict)


def counts_of(report: dict[str, Any]) -> dict[str, Any]:
    """Counts of a report of `graft check`."""
    results = [each for each in report["results"] if each["status"] != "not applicable"]
    return {
        **{name: report["environments"]["cpu"][name] for name in ("date", "torch", "python", "platform")},
        "operators": sorted({each["operator"] for each in results}),
        "passed": sum(each["status"] == "pass" for each in results),
        "failed": [f"{each['operator']}: {each['property']}" for each in results if each["status"] != "pass"],
    }


def commands_of_cmake(folder: Path) -> list[list[str]]:
    """The commands with which CMake would compile the CPU libraries here, without their outputs."""
    configured = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-Wno-author", "-DTORCHGRAFT_CUDA=OFF"]
    configured += ["-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    subprocess.run(configured, check=True, capture_output=True, env={**os.environ, "PATH": path})
    commands = []
    for each in json.loads((folder / "compile_commands.json").read_text()):
        if "stand_in" not in each["file"]:
            words = shlex.split(each["command"])
            commands.append([*words[1 : words.index("-o")], each["file"]])
    return commands


def first_error(compiler: str, target: Target, options: Sequence[str]) -> str:
    """The first error of a compiler for a source; empty if there is none."""
    kept = [option for option in options if option not in target.without]
    command = [compiler, *kept, "-fsyntax-only"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode == 0:
        return ""
    found = _ERROR.search(done.stderr)
    return found[1] if found else done.stderr.strip()[-200:]


def ask(platform: str, target: Target, commands: Sequence[Sequence[str]], folder: Path) -> Asked | None:
    """Asks the first compiler of a platform that is installed; None if none is."""
    compiler = next(filter(shutil.which, target.compilers), None)
    if compiler is None:
        return None
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"\d+", said.partition("version")[2])
    options = [each.format(version=version[0] if version else "") for each in target.options]
    for name, text in target.stand_ins.items():
        (folder / name).write_text(text)
    if target.stand_ins:
        options += ["-isystem", str(folder)]
    program = folder / "program.cpp"
    program.write_text(_PROGRAM)
    sources = [*commands, [*commands[0][:-1], str(program)]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        *errors, of_program = pool.map(lambda each: first_error(compiler, target, [*options, *each]), sources)
    failed = Counter(filter(None, errors))
    today = datetime.now(timezone.utc).date().isoformat()
    compiled = len(errors) - failed.total()
    name = said.partition("\n")[0]
    return Asked(platform, name, target.headers, today, len(errors), compiled, dict(failed.most_common()), of_program)


def main() -> int:
    """The command; 1 if a source does not compile for a platform."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"by default all: {'; '.join(TARGETS)}")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="keep the names of its libraries, and ask nothing")
    parser.add_argument("--checked", type=Path, metavar="REPORT", help="keep what `graft check` found, and ask nothing")
    wanted = parser.parse_args()
    kept = {each["platform"]: each for each in json.loads(WRITTEN.read_text())} if WRITTEN.is_file() else {}
    if wanted.checked or wanted.built:
        [platform] = wanted.platforms
        if wanted.built:
            kept[platform]["built"] = sorted(path.name for path in wanted.built.glob("*.so"))
        if wanted.checked:
            kept[platform]["checked"] = counts_of(json.loads(wanted.checked.read_text()))
    else:
        with tempfile.TemporaryDirectory() as folder:
            commands = commands_of_cmake(Path(folder, "build"))
            for platform in wanted.platforms or TARGETS:
                aside = Path(folder, platform.replace(" ", "-"))
                aside.mkdir()
                found = ask(platform, TARGETS[platform], commands, aside)
                if found is None:
                    print(f"{platform}: none of {', '.join(TARGETS[platform].compilers)} is installed")
                    continue
                print(f"{platform}: {found.compiled} of {found.sources} compile", *found.errors, flush=True)
                before = {name: kept[platform][name] for name in ("built", "checked")} if platform in kept else {}
                kept[platform] = {**asdict(found), **before}
    WRITTEN.write_text(as_json([kept[platform] for platform in TARGETS if platform in kept]))
    return int(any(each["errors"] for each in kept.values()))


if __name__ == "__main__":
    sys.exit(main())
