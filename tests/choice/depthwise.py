"""Problems of a depthwise convolution in words, as the golden file has them, and as tests/choice/depthwise_conv2d.cpp
reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from random import Random

QUESTIONS = ("forward", "input_grad", "weight_grad", "layout", "images_of_weight_grad")
_BYTES = {"half": 2, "float32": 4, "float64": 8}
_DTYPES = {size: name for name, size in _BYTES.items()}
_LARGEST = 1 << 58
_KIB = 1024
# The device of a line that names none.
_DEVICE = (True, 227 * _KIB, 132)
_SIZES = re.compile(r"(\d+),(\d+),(\d+)x(\d+),k(\d+)(?:x(\d+))?((?:,[sdpbm]\d+(?:x\d+)?)*)")

Pair = tuple[int, int]


@dataclass(frozen=True)
class Call:
    """A pass over images, on a device. None for the padding that keeps an odd kernel's size, and for as much behind."""

    question: str = "forward"
    element_bytes: int = 4
    layout: str = "NCHW"
    images: tuple[int, int, int, int] = (128, 96, 56, 56)
    kernel: Pair = (3, 3)
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair | None = None
    padding_behind: Pair | None = None
    multiplier: int = 1
    alignment: int = 16
    tensor_cores: bool = True
    shared_bytes: int = 227 * _KIB
    multiprocessors: int = 132

    @property
    def paddings(self) -> tuple[Pair, Pair]:
        """In front, and behind."""
        front = self.padding or (self.kernel[0] // 2, self.kernel[1] // 2)
        return front, self.padding_behind or front

    @property
    def outputs(self) -> Pair:
        """Rows and columns of the output."""
        front, behind = self.paddings
        rows, columns = (
            (size + front[i] + behind[i] - self.dilation[i] * (self.kernel[i] - 1) - 1) // self.stride[i] + 1
            for i, size in enumerate(self.images[2:])
        )
        return rows, columns

    @property
    def is_possible(self) -> bool:
        """Whether there are outputs, and memory for both images."""
        batch, channels, rows, columns = self.images
        pixels = max(rows * columns, self.multiplier * self.outputs[0] * self.outputs[1])
        return (
            min(*self.images, *self.kernel, *self.outputs, self.alignment // self.element_bytes) > 0
            and batch * channels * pixels < _LARGEST
        )

    def line(self) -> str:
        """The line that the program reads."""
        front, _ = self.paddings
        extents = zip(self.images[2:], self.outputs, self.kernel, self.stride, front, self.dilation, strict=True)
        device = self.alignment, int(self.tensor_cores), self.shared_bytes, self.multiprocessors
        numbers = (self.layout == "NHWC", self.element_bytes, *device, *self.images[:2], self.multiplier)
        rows, columns = extents
        return " ".join([self.question, *(str(int(number)) for number in (*numbers, *rows, *columns))])

    def __str__(self) -> str:
        batch, channels, rows, columns = self.images
        sizes = f"{batch},{channels},{rows}x{columns},k{_shown(self.kernel)}"
        named = {"s": self.stride, "d": self.dilation, "p": self.padding, "b": self.padding_behind}
        for letter, pair in named.items():
            if pair is not None and not (letter in "sd" and pair == (1, 1)):
                sizes += f",{letter}{_shown(pair)}"
        if self.multiplier != 1:
            sizes += f",m{self.multiplier}"
        words = [self.question, _DTYPES[self.element_bytes], self.layout, sizes]
        if self.alignment != 16:
            words.append(f"aligned={self.alignment}")
        if (self.tensor_cores, self.shared_bytes, self.multiprocessors) != _DEVICE:
            cores = "" if self.tensor_cores else ",no tensor cores"
            words.append(f"on={self.multiprocessors}x{self.shared_bytes // _KIB}KiB{cores}")
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> Call:
        """The call of a line of the golden file.

        Raises:
            ValueError: the line is none.
        """
        question, dtype, layout, sizes, *rest = text.split(maxsplit=4)
        found = _SIZES.fullmatch(sizes)
        if found is None or dtype not in _BYTES or layout not in ("NCHW", "NHWC"):
            raise ValueError(f"not a problem: {text!r}; write one as `forward float32 NCHW 128,96,56x56,k3,s2`")
        named = {part[0]: part[1:] for part in filter(None, found[7].split(","))}
        call = cls(
            question,
            _BYTES[dtype],
            layout,
            (int(found[1]), int(found[2]), int(found[3]), int(found[4])),
            (int(found[5]), int(found[6] or found[5])),
            _pair(named.get("s", "1")),
            _pair(named.get("d", "1")),
            _pair(named["p"]) if "p" in named else None,
            _pair(named["b"]) if "b" in named else None,
            int(named.get("m", "1")),
        )
        others = rest[0] if rest else ""
        if aligned := re.search(r"aligned=(\d+)", others):
            call = replace(call, alignment=int(aligned[1]))
        if device := re.search(r"on=(\d+)x(\d+)KiB(,no tensor cores)?", others):
            multiprocessors, shared = int(device[1]), int(device[2]) * _KIB
            call = replace(call, multiprocessors=multiprocessors, shared_bytes=shared, tensor_cores=device[3] is None)
        return call

    def numbers(self) -> dict[str, int]:
        """Every number of the call that a boundary may lie between, by name."""
        batch, channels, rows, columns = self.images
        named = {"batch": batch, "channels": channels, "rows": rows, "columns": columns}
        return {**named, "kernel": self.kernel[0], "kernel columns": self.kernel[1], "alignment": self.alignment}

    def with_number(self, name: str, value: int) -> Call:
        """The call with another one of its numbers; with another `kernel` it stays square if it is."""
        if name == "alignment":
            return replace(self, alignment=value)
        if name == "kernel":
            return replace(self, kernel=(value, value if self.kernel[0] == self.kernel[1] else self.kernel[1]))
        if name == "kernel columns":
            return replace(self, kernel=(self.kernel[0], value))
        images = list(self.images)
        images[("batch", "channels", "rows", "columns").index(name)] = value
        batch, channels, rows, columns = images
        return replace(self, images=(batch, channels, rows, columns))

    @classmethod
    def draw(cls, random: Random) -> Call:
        """A call that is possible, drawn at random."""
        while True:
            call = _draw(random)
            if call.is_possible:
                return call


def _pair(text: str) -> Pair:
    one, _, other = text.partition("x")
    return int(one), int(other or one)


def _shown(pair: Pair) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"


def _draw(random: Random) -> Call:
    return _draw_layer(random) if random.random() < 0.3 else _draw_any(random)


def _draw_layer(random: Random) -> Call:
    """A layer as networks have them."""
    side = random.choice((7, 7, 14, 28, 56, 112))
    kernel = random.choice((3, 3, 5, 7, 13, 27, 31))
    stride = random.choice((1, 1, 1, 2))
    return Call(
        random.choice(QUESTIONS[:3]),
        random.choice((2, 4)),
        random.choice(("NCHW", "NHWC")),
        (int(2 ** random.uniform(0, 11)), random.randint(1, 48) * random.choice((1, 2, 4, 8, 32)), side, side),
        (kernel, kernel),
        (stride, stride),
        multiprocessors=random.choice((132, 132, 66)),
    )


def _draw_any(random: Random) -> Call:
    """A call of which little is usual."""

    def side() -> int:
        return random.choice((random.choice((7, 14, 28, 56)), random.randint(1, 70), int(2 ** random.uniform(0, 11))))

    kernel = random.choice((1, 2, 3, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 11, 13, 15, 27, 31))
    sides = (kernel, kernel) if random.random() < 0.8 else (kernel, random.choice((1, 2, 3, 5, 7, 8)))
    stride = random.choice((1, 1, 1, 2, 3))
    dilation = random.choice((1, 1, 1, 2, 3)) if stride == 1 or random.random() < 0.2 else 1
    height = side()
    size = random.choice((2, 4, 4, 2, 8))
    return Call(
        random.choice((*QUESTIONS[:3], *QUESTIONS)),
        size,
        random.choice(("NCHW", "NHWC")),
        (
            int(2 ** random.uniform(0, 9)),
            random.choice((random.randint(1, 8), 8 * random.randint(1, 64), int(2 ** random.uniform(0, 12)))),
            height,
            height if random.random() < 0.6 else side(),
        ),
        sides,
        (stride, stride) if random.random() < 0.9 else (1, stride),
        (dilation, dilation),
        (dilation * (sides[0] // 2), dilation * (sides[1] // 2)) if dilation > 1 else None,
        None,
        random.choice((1, 1, 1, 1, 2)),
        random.choice((16, 16, 16, 8, max(size, 4))),
        random.random() < 0.9,
        random.choice((227, 227, 163, 99)) * _KIB,
        random.choice((132, 132, 66)),
    )
