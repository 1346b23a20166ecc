"""Which pages the site has, and in which order."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOT_PAGE = "docs/index"


def _translated(language: str) -> list[str]:
    folder = f"docs/{language}"
    start = [f"{folder}/index.md", f"{folder}/start/model.md", f"{folder}/start/kernel.md"]
    return [*start, f"{folder}/tutorial.md", f"{folder}/*.md", f"{folder}/*/*.md"]


# By heading. A pattern stands for all files that it fits and that are named nowhere else; what is not written yet is
# left out.
TREE = {
    "Start": ["docs/start/model.md", "docs/start/kernel.md", "docs/from-tutorials.md", "docs/distributed.md"],
    "Operators": [
        "docs/depthwise_conv2d.md",
        "docs/depthwise_conv1d.md",
        "docs/depthwise_conv3d.md",
        "docs/depthwise_conv_transpose.md",
        "docs/performance/depthwise.md",
        "docs/causal_conv1d.md",
        "docs/lltm.md",
        "docs/shift.md",
        "docs/linear.md",
        "docs/mul_constant.md",
    ],
    "Guide for authors": [
        "docs/tutorial.md",
        "docs/operators.md",
        "docs/kernels.md",
        "docs/backward.md",
        "docs/languages.md",
        "docs/recurrence.md",
        "docs/check.md",
        "docs/check/reference.md",
        "docs/check/evidence.md",
        "docs/bench.md",
        "docs/real-inputs.md",
        "docs/packages.md",
        "docs/support.md",
        "docs/cpp.md",
        "docs/mistakes.md",
        "docs/*.md",
        "examples/gallery/README.md",
        "examples/*/README.md",
    ],
    "Reference": [
        "docs/api/torchgraft.md",
        "docs/api/nn.md",
        "docs/api/sampling.md",
        "docs/api/checking.md",
        "docs/api/*.md",
        "docs/api/cpp.md",
        "docs/api/commands.md",
    ],
    "Design": [
        "docs/design/calls.md",
        "docs/design/how-we-know.md",
        "docs/design/stable-abi.md",
        "docs/design/emulator.md",
        "docs/design/*.md",
    ],
    "Results": ["docs/results.md", "docs/results/h200.md", "docs/results/cpu.md", "docs/results/*.md"],
    "中文": _translated("zh"),
    "日本語": _translated("ja"),
    "The project": ["CONTRIBUTING.md", "CHANGELOG.md"],
}
# Pages below a page.
BELOW = {"examples/gallery/README": ["examples/gallery/*/README.md"]}
_NAMED = {f"{ROOT_PAGE}.md", *(path for paths in TREE.values() for path in paths)}


def _found(patterns: list[str]) -> list[str]:
    found = []
    for pattern in patterns:
        paths = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))
        found += [path for path in paths if "*" not in pattern or path not in _NAMED]
    return found


def pages() -> list[str]:
    """All pages."""
    below = [path for patterns in BELOW.values() for path in _found(patterns)]
    return [f"{ROOT_PAGE}.md", *(path for patterns in TREE.values() for path in _found(patterns)), *below]


def trees(docname: str) -> str:
    """The hidden lines of a page that tell Sphinx which pages are below it."""
    below = TREE if docname == ROOT_PAGE else {"": BELOW.get(docname, [])}
    parts = []
    for heading, patterns in below.items():
        if paths := _found(patterns):
            caption = [f":caption: {heading}"] if heading else []
            parts.append(
                "\n".join(["", "```{toctree}", ":hidden:", *caption, "", *(f"/{path}" for path in paths), "```"])
            )
    return "\n".join(["", *parts, ""])
