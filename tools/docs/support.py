"""Writes under which versions of PyTorch the properties hold, and what is known of each GPU, Python and platform.

The versions are from what `make test-torch` found under each, the GPUs that nobody here has from what `python
tools/devices/devices.py` found, and all that ran from the environments in benchmarks/results. Of other platforms
`make test-platforms` asks compilers, and `python tools/hipified.py` counts what HIP lacks. `python
tools/docs/support.py` writes the tables into docs/operators.md and docs/support.md, and the newest version under which
all properties hold into README.md; with `--check` it only names what is not current, and exits with 1 if there is
anything.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from generated import ROOT, write_or_check

VERSIONS = ROOT / "docs/versions"
DEVICES = ROOT / "docs/devices.json"
PLATFORMS = ROOT / "docs/platforms.json"
HIPIFIED = ROOT / "docs/hipified.json"
RESULTS = ROOT / "benchmarks/results"
COMPILED_FOR = ROOT / "src/torchgraft/cmake/TorchgraftKernels.cmake"
# The compute capability of a GPU that results name.
CAPABILITIES = {"H100": 9.0, "H200": 9.0}
# Pythons and platforms that people ask for, with what is known beside what ran there and what compilers say.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OTHER_PLATFORMS = {
    "Linux on aarch64": "no wheel is built for it",
    "Linux with musl, as Alpine": "PyTorch has no wheels for it",
    "macOS on arm64": "the references answer",
    "Windows on x86-64": "the references answer; Linux in WSL counts as Linux",
}
STATUSES = ("pass", "fail", "not applicable")


def number(path: Path) -> tuple[int, ...]:
    """A version as numbers, so that 2.9 comes before 2.11."""
    return tuple(int(part) for part in path.stem.split("."))


def holds(found: dict[str, Any]) -> bool:
    """Whether all was run, and nothing failed."""
    return not found["failed"] and not found["unfinished"]


def table(headings: str, rows: Iterable[Iterable[object]]) -> str:
    """A table of headings, with bars between, and rows."""
    lines = [headings.split(" | "), ["---"] * (headings.count(" | ") + 1), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def version_row(found: dict[str, Any]) -> list[object]:
    """A version: what it was checked on, and what came of it."""
    counts = (sum(each.get(status, 0) for each in found["operators"].values()) for status in STATUSES)
    return [found["torch"], found["python"], found["date"][:10], len(found["operators"]), *counts, outcome(found)]


def outcome(found: dict[str, Any]) -> str:
    """Describes what does not hold under a version."""
    failed = "; ".join(f"{operator}: {', '.join(names)}" for operator, names in found["failed"].items())
    unfinished = f"{found['unfinished']} not run" if found["unfinished"] else ""
    return "; ".join(filter(None, (failed, unfinished))) or "every property holds"


def device_row(found: dict[str, Any]) -> list[object]:
    """A GPU: what was asked of it, and what came of it."""
    plans = found["plans"].values()
    problems, kernels, launches = (
        f"{sum(each[name] for each in plans):,}" for name in ("problems", "kernels", "launches")
    )
    unable, refused = (sum(len(each[name]) for each in plans) for name in ("unable", "refused"))
    values = f"{found['passed']} hold" + (f", {found['failed']} do not" if found["failed"] else "")
    compiled_for, device = found["compiled_for"] / 10, found["device"] / 10
    return [device, compiled_for, problems, kernels, unable, launches, refused, values]


def environments() -> Iterator[dict[str, Any]]:
    """Yields the environment of each result, and of each version of PyTorch that was tried."""
    for path in sorted(RESULTS.rglob("*.json")):
        found = json.loads(path.read_text())
        if isinstance(found, dict) and isinstance(found.get("environment"), dict):
            yield found["environment"]
    for path in sorted(VERSIONS.glob("*.json"), key=number):
        found = json.loads(path.read_text())
        yield {"device": "cpu", "torch": found["torch"], "python": found["python"], "date": found["date"]}


def latest(kept: Iterable[dict[str, Any]]) -> str:
    """The day of the newest of some results."""
    return max(each["date"] for each in kept)[:10]


def joined(kept: Iterable[dict[str, Any]], key: str) -> str:
    """The different values of an entry, in order."""
    return ", ".join(dict.fromkeys(each[key] for each in kept if each.get(key)))


def gpu_rows(ran: list[dict[str, Any]]) -> list[list[object]]:
    """Each GPU that ran, and then each compute capability that was emulated or is compiled for."""
    on_gpus = [each for each in ran if each["device"] == "cuda"]
    rows: list[list[object]] = []
    for chip in dict.fromkeys(each["chip"] for each in on_gpus):
        own = [each for each in on_gpus if each["chip"] == chip]
        [capability] = [value for name, value in CAPABILITIES.items() if name in chip]
        driver = f", driver {drivers}" if (drivers := joined(own, "driver")) else ""
        rows.append([capability, chip, "**run**", f"PyTorch {joined(own, 'torch')}{driver}, {latest(own)}"])
    emulated = {each["device"] / 10: each for each in json.loads(DEVICES.read_text())}
    architectures = re.search(r"set\(CMAKE_CUDA_ARCHITECTURES (\d[^)]*)\)", COMPILED_FOR.read_text())
    assert architectures is not None
    compiled = {int(each.removesuffix("-real")) / 10 for each in architectures[1].split()}
    seen = {row[0] for row in rows}
    for capability in sorted({*emulated, *compiled} - seen):
        if (found := emulated.get(capability)) is None:
            rows.append([capability, "any", "compiled", "a wheel has code for it"])
            continue
        code = f"code for {found['compiled_for'] / 10}"
        own_code = capability in compiled
        said = f"{code}, {found['passed']} checks of values hold"
        said += "; a wheel has code for it" if own_code else "; a wheel has no code of its own for it"
        rows.append([capability, "any", "emulated", said])
    return sorted(rows, key=lambda row: row[0])  # type: ignore[arg-type,return-value]


def python_rows(ran: list[dict[str, Any]]) -> list[list[object]]:
    """Each minor version of Python."""
    rows: list[list[object]] = []
    for version in PYTHONS:
        own = [each for each in ran if each["python"].startswith(f"{version}.")]
        said = f"{joined(own, 'python')}, with PyTorch {joined(own, 'torch')}" if own else ""
        rows.append([version, "**run**" if own else "unknown", said])
    return rows


def platform_rows(ran: list[dict[str, Any]]) -> list[list[object]]:
    """Linux on x86-64, which everything ran on, and what else people ask for."""
    glibcs = {found[1] for each in ran if (found := re.search(r"x86_64-with-glibc([\d.]+)", each.get("platform", "")))}
    known = f"glibc {', '.join(sorted(glibcs))}; PyPA's image builds wheels for glibc 2.28 and newer"
    rows: list[list[object]] = [["Linux on x86-64", "**run**", known]]
    asked = json.loads(PLATFORMS.read_text())
    for name, said in OTHER_PLATFORMS.items():
        own = [each for each in asked if each["platform"].startswith(f"{name},")]
        if not own or any(each["errors"] for each in own):
            rows.append([name, "unknown", said])
            continue
        built = any(each["built"] for each in own)
        by = " and ".join(each["platform"].partition(", ")[2] for each in own)
        rows.append([name, "compiled" if built else "parsed", f"the CPU library, by {by}; {said}"])
    return rows


def compiler_rows() -> list[list[object]]:
    """Each compiler that was asked for a platform: what it says of the sources of the CPU libraries."""
    return [
        [
            each["platform"],
            each["compiler"],
            each["headers"],
            f"{each['compiled']} of {each['sources']}",
            "yes" if not each["program"] else f"no: {each['program']}",
            checked_in(each),
        ]
        for each in json.loads(PLATFORMS.read_text())
    ]


def checked_in(asked: dict[str, Any]) -> str:
    """Describes what `graft check` found with the libraries of a compiler."""
    if not (found := asked["checked"]):
        return ""
    failed = f", these do not: {', '.join(found['failed'])}" if found["failed"] else ""
    operators = f"{len(found['operators'])} operator{'' if len(found['operators']) == 1 else 's'}"
    return f"{found['passed']} properties of {operators} hold{failed}; PyTorch {found['torch']}, {found['date'][:10]}"


def hipified_rows() -> list[list[object]]:
    """Sources and headers of CUDA: how many lines hipify changes."""
    found = json.loads(HIPIFIED.read_text())
    keys = ("files", "changed_files", "lines", "changed_lines")
    return [[kind, *(f"{found[kind][key]:,}" for key in keys)] for kind in ("sources", "headers")]


def hip_asked() -> str:
    """Says which compiler parsed the sources for HIP, and what it says first of those that it does not take."""
    found = json.loads(HIPIFIED.read_text())
    compiled = [each for each in found["files"] if each["file"].endswith(".cu")]
    refusals = Counter(each["refused"] for each in compiled if each["refused"])
    said = "; ".join(f"{count} with `{words}`" for words, count in refusals.most_common())
    by_hand = ", ".join(f"`{name}`" for name in found["by_hand"])
    parsed = sum(each["refused"] == "" for each in compiled)
    return (
        f"{found['compiler']}, for `{found['gpu']}`, takes {parsed} of {len(compiled)} sources, once what hipify "
        f"leaves of {by_hand} is replaced by hand. It refuses {said}."
    )


def hip_need_rows() -> list[list[object]]:
    """How many sources of CUDA use what HIP has not, or has otherwise, and how many of them are parsed all the same."""
    found = json.loads(HIPIFIED.read_text())
    compiled = [each for each in found["files"] if each["file"].endswith(".cu")]
    rows: list[list[object]] = []
    for need in (*found["needs"], ""):
        own = [each for each in compiled if (need in each["needs"] if need else not each["needs"])]
        folders = sorted({"/".join(each["file"].split("/")[:2]) for each in own})
        parsed = sum(each["refused"] == "" for each in own)
        rows.append([need or "none of these", len(own), parsed, ", ".join(f"`{Path(each).name}`" for each in folders)])
    return rows


def processor_rows(ran: list[dict[str, Any]]) -> list[list[object]]:
    """Each processor that kernels for the CPU ran on."""
    on_cpus = [each for each in ran if each["device"] == "cpu" and "chip" in each]
    chips = dict.fromkeys(each["chip"] for each in on_cpus)
    return [[chip, "**run**", latest(each for each in on_cpus if each["chip"] == chip)] for chip in chips]


def main() -> int:
    """Writes, or checks, the tables and the version."""
    ran = list(environments())
    versions = {path.stem: json.loads(path.read_text()) for path in sorted(VERSIONS.glob("*.json"), key=number)}
    newest = [version for version, each in versions.items() if holds(each)][-1]
    written = {
        "newest-torch": newest,
        "versions": table(
            "PyTorch | Python | checked on | operators | passed | failed | not applicable | ",
            map(version_row, versions.values()),
        ),
        "devices": table(
            "compute capability | kernels compiled for | calls | kernels | kernels that it cannot run | launches | "
            "limits exceeded | values in the emulator",
            map(device_row, json.loads(DEVICES.read_text())),
        ),
        "support-gpus": table("compute capability | GPU | known | how", gpu_rows(ran)),
        "support-processors": table("processor | known | last", processor_rows(ran)),
        "support-pythons": table("Python | known | how", python_rows(ran)),
        "support-torch": table(
            "PyTorch | known | `graft check --quick` of all operators",
            (
                [found["torch"], "**run**", f"{'' if holds(found) else 'these fail: '}{outcome(found)}"]
                for found in versions.values()
            ),
        ),
        "support-platforms": table("platform | known | how", platform_rows(ran)),
        "support-compilers": table(
            "platform | compiler | headers | sources that it takes | what C++ programs include | `graft check`",
            compiler_rows(),
        ),
        "support-hipified": table("CUDA | files | files that change | lines | lines that change", hipified_rows()),
        "support-hip-asked": hip_asked() + "\n",
        "support-hip-needs": table("what a source uses | sources | clang parses for HIP | of", hip_need_rows()),
    }
    return write_or_check("support", written)


if __name__ == "__main__":
    sys.exit(main())
