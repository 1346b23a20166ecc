"""Made-up reports of a benchmark: what is tested is what becomes of figures, not the figures."""

from dataclasses import replace

from torchgraft.benchmarking.results import BenchReport, Card
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.rows import RivalResult, Row
from torchgraft.benchmarking.timing import Ratio, Time
from torchgraft.machine.environment import Environment

ENVIRONMENT = Environment(
    date="2026-01-02T03:04:05+00:00",
    device="cuda",
    chip="A made-up card",
    threads=4,
    torchgraft="0.1.0",
    torch="2.13.0",
    python="3.12.0",
    platform="Linux",
)
ROOFS = Roofs({2**20: 1e11, 2**30: 2e12}, {"float32": 5e13}, {"float32": 4e13, "bfloat16": 5e14}, 2e-6)


def make_row(sample="small", median=1e-4, ratio=2.0, **changes):
    """A row with one rival, against which it stands as asked; without a ratio the rival is refused."""
    rival = RivalResult(None, None, "RuntimeError: there is no <engine> for it")
    if ratio is not None:
        rival = RivalResult(Time(median * ratio, median, median), Ratio(ratio, ratio * 0.98, ratio * 1.02), "")
    row = Row(
        operator="twice",
        suite="sizes",
        sample=sample,
        dtype="float32",
        layout="contiguous",
        direction="forward",
        time=Time(median, median * 0.99, median * 1.01),
        warm=Time(median * 0.8, median * 0.79, median * 0.81),
        host=9e-6,
        moved=2**22,
        operations=2**24,
        floor=median / 2,
        bound="memory",
        noise=Ratio(1.0, 0.99, 1.01),
        rivals={"pytorch": rival},
    )
    return replace(row, **changes)


def make_report(rows=None, **changes):
    """A report of a GPU: two suites, both layouts, a loss, noise, a refusal, and a model, which has no floor."""
    if rows is None:
        rows = [
            make_row("128,32,112x112,k3 of a network", 1e-4, 12.0),
            make_row("128,32,112x112,k3 of a network", 2e-4, 3.0, layout="channels_last"),
            make_row("128,32,112x112,k3 of a network", 5e-5, 1.01, dtype="bfloat16"),
            make_row("64,512,14x14,k27 of another", 3e-4, 0.5),
            make_row("<b>one</b> image", 3e-6, None, bound="launch"),
            make_row("odd", 1e-4, 2.0, suite="awkward", fallbacks=("no kernel for this dtype",)),
            make_row(
                "odd",
                1e-4,
                None,
                suite="awkward",
                dtype="bfloat16",
                time=None,
                warm=None,
                noise=None,
                problem="it is wrong",
            ),
            make_row(
                "8,3,64x64 eager",
                0.03,
                1.2,
                operator="a_model",
                suite="training step",
                direction="training",
                floor=float("nan"),
                bound="",
                moved=0,
                operations=0,
            ),
        ]
    figures = {
        "environment": ENVIRONMENT,
        "card": Card("A made-up card", (1980, 1950), (40, 60)),
        "roofs": ROOFS,
        "rows": tuple(rows),
        "quick": False,
        "seconds": 123.4,
    }
    return BenchReport(**(figures | changes))
