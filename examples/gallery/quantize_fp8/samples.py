"""Inputs of quantize_fp8: widths around a block of 8192 columns, and rows that are zero, tiny, huge or one-sided."""

from random import Random

import torch

from quantize_fp8.operator import quantize_fp8
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples


def _draw(random: Random) -> Sample:
    shape = (*(random.randint(0, 4) for _ in range(random.randint(0, 2))), random.randint(1, 40))
    return Sample(f"drawn {shape}", (Drawn(shape, scale=random.choice((1e-3, 1.0, 100.0))),))


samples = {
    "quantize_fp8": Samples(
        [
            Sample("one element", (Drawn((1, 1)),)),
            Sample("no rows", (Drawn((0, 8)),)),
            Sample("one row without a dimension of its own", (Drawn((24,)),)),
            Sample("zeros", (Drawn((2, 8), values=(0.0,)),)),
            Sample("a row of zeros beside others", (Drawn((2, 4), values=(0.0, 0.0, 0.0, 0.0, 1.0, -2.0, 3.0, 0.25)),)),
            Sample("as large as float16 holds", (Drawn((2, 4), values=(65504.0, -65504.0, 3000.0, 0.0)),)),
            Sample("tiny", (Drawn((2, 4), values=(6e-8, -1.2e-7, 3e-7, 0.0)),)),
            Sample("fifteen columns", (Drawn((3, 15)),)),
            Sample("sixteen columns", (Drawn((3, 16)),)),
            Sample("seventeen columns, three dimensions", (Drawn((2, 3, 17)),)),
            Sample("one column less than a block", (Drawn((1, 8191)),)),
            Sample("a block", (Drawn((1, 8192)),)),
            Sample("one column more than a block", (Drawn((1, 8193)),)),
            Sample("several blocks", (Drawn((2, 16400)),)),
        ],
        _draw,
        benchmarks=[
            Benchmark(Sample("512 x 4096", (Drawn((512, 4096)),)), "layers", quick=True),
            Benchmark(Sample("16384 x 8192", (Drawn((16384, 8192)),)), "layers", devices=("cuda",)),
        ],
        rivals={"pytorch": quantize_fp8.reference, "compiled": torch.compile(quantize_fp8.reference)},
    )
}
