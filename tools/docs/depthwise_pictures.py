"""The pictures of docs/performance/depthwise.md: how each family of kernels shares out the work.

Colours follow the reader's light or dark theme.
"""

from html import escape

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.cell { fill: #f6f8fa; stroke: #8c959f; stroke-width: 0.7 }
.one { fill: #54aeff } .two { fill: #ffb77c } .three { fill: #6fdd8b } .four { fill: #d8b9ff }
.arrow { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#head) } #head path { fill: #57606a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .cell { fill: #161b22; stroke: #6e7681 }
  .one { fill: #1f6feb } .two { fill: #bd561d } .three { fill: #238636 } .four { fill: #8957e5 }
  .arrow { stroke: #8b949e } #head path { fill: #8b949e }
}
"""
_CELL = 14
# What letters of a grid are filled with.
_FILLS = {"a": "one", "b": "two", "c": "three", "d": "four", ".": ""}


class _Picture:
    """Grids, labels and arrows."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img"><title>{escape(title)}</title><style>{_STYLE}</style><defs><marker id="head" '
            'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
            '<path d="M0 0 8 4 0 8z"/></marker></defs>'
        )
        self._parts: list[str] = []

    def grid(self, x: int, y: int, rows: str, label: str = "") -> None:
        """Cells from (x, y) on, a letter each, rows apart by spaces; a blank `_` is no cell."""
        for i, row in enumerate(rows.split()):
            for j, letter in enumerate(row):
                if letter != "_":
                    kind = f"cell {_FILLS[letter]}".strip()
                    place = f'x="{x + j * _CELL}" y="{y + i * _CELL}" width="{_CELL}" height="{_CELL}"'
                    self._parts.append(f'<rect class="{kind}" {place}/>')
        if label:
            self.text(x, y - 6, label)

    def text(self, x: int, y: int, words: str) -> None:
        """Words that begin at a place."""
        self._parts.append(f'<text x="{x}" y="{y}">{escape(words)}</text>')

    def arrow(self, *points: int) -> None:
        """A line through points, its head at the last."""
        self._parts.append(f'<polyline class="arrow" points="{" ".join(map(str, points))}"/>')

    def __str__(self) -> str:
        return "\n".join([self._head, *self._parts, "</svg>", ""])


def _small_planes() -> _Picture:
    picture = _Picture("Small planes are moved whole", 660, 190)
    picture.grid(
        10, 30, "aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbbcccccccccccc", "device memory: neighbouring planes are one run"
    )
    picture.arrow(300, 50, 300, 72)
    picture.text(312, 66, "sixteen bytes at a time")
    for place, letter in enumerate("abc"):
        picture.grid(10 + 130 * place, 80, " ".join([letter * 7] * 7), "")
    picture.text(410, 110, "shared memory: planes of one warp")
    picture.text(410, 130, "a lane owns 7 x 7 results,")
    picture.text(410, 150, "which take the place of its sources")
    return picture


def _strips() -> _Picture:
    picture = _Picture("Lanes slide down strips of a plane", 640, 200)
    picture.grid(
        10, 30, " ".join(["aaaabbbbccccdddd"] * 3 + ["................"] * 9), "NCHW plane: columns of four lanes"
    )
    picture.arrow(242, 40, 242, 190)
    picture.text(252, 40, "all lanes slide down")
    picture.grid(
        330, 80, "aaaabbbbccccdddd ................ ................", "ring of rows in shared memory, copied ahead"
    )
    picture.arrow(360, 126, 360, 150)
    picture.text(330, 166, "a row meets k rows of sums in registers;")
    picture.text(330, 184, "a result leaves with its last row of sources")
    return picture


def _slide() -> _Picture:
    picture = _Picture("Lanes lie along channels and slide down", 640, 190)
    picture.grid(10, 30, " ".join(["aabbccdd"] * 9), "NHWC: channels of a pixel")
    picture.text(10, 176, "lanes: 1 to 4 channels each")
    picture.grid(200, 30, " ".join(["aaaa...."] * 3 + ["........"] * 6), "a thread's columns")
    picture.arrow(330, 36, 330, 150)
    picture.text(345, 60, "three buffers of rows in shared memory,")
    picture.text(345, 78, "two of them on their way")
    picture.text(345, 108, "the rows of all images are cut into as many")
    picture.text(345, 126, "equal ranges as blocks are resident: one wave")
    return picture


def _band() -> _Picture:
    picture = _Picture("A row of results is a band matrix of taps times sources", 640, 310)
    rows = ["." * i + "a" * 7 + "." * (9 - i) for i in range(8)]
    picture.grid(10, 30, " ".join(rows), "taps: 8 results x 16 sources")
    picture.text(250, 90, "x")
    picture.grid(270, 30, " ".join(["bbbbbbbb"] * 16), "sources: 8 units")
    picture.text(395, 90, "=")
    picture.grid(420, 30, " ".join(["cccccccc"] * 8), "results")
    picture.text(10, 284, "A unit is two rows of eight results; kernel rows add up in the same registers.")
    picture.text(10, 302, "Where a source outside the window is not finite, the result is computed again tap by tap.")
    return picture


def _diagonals() -> _Picture:
    picture = _Picture("A tap is a diagonal of the product of both images", 660, 270)
    picture.grid(10, 30, " ".join(["bbbbbbbbbbbbbbbb"] * 4), "input: rows x 16 columns")
    picture.grid(10, 120, " ".join(["cccccccc"] * 4), "output gradient: rows x 8")
    picture.arrow(245, 100, 275, 100)
    rows = ["".join("abcd"[(i - j) % 4] if 0 <= i - j < 7 else "." for j in range(8)) for i in range(16)]
    picture.grid(290, 30, " ".join(rows), "all products of columns")
    picture.text(430, 70, "each diagonal is one tap;")
    picture.text(430, 90, "it stays in registers for all rows")
    picture.text(430, 110, "and images of the chunk,")
    picture.text(430, 130, "and is summed once, at the end")
    return picture


def _window() -> _Picture:
    picture = _Picture("A thread loads the whole window of its results at once", 640, 165)
    picture.grid(10, 30, "aaaaaa aaaaaa aaaaaa", "sources (k = 3), of one channel")
    picture.arrow(105, 50, 135, 50)
    picture.grid(150, 44, "cccc", "")
    picture.text(10, 106, "18 loads on their way at once")
    picture.text(10, 124, "give a thread four results;")
    picture.text(10, 142, "lanes lie along channels")
    picture.grid(270, 30, "bbb bbb bbb", "taps of the block's channels")
    picture.text(270, 106, "loaded as they lie, turned on their way to")
    picture.text(270, 124, "shared memory: the sources have been asked")
    picture.text(270, 142, "for before a thread waits for any of them")
    return picture


def _channel_products() -> _Picture:
    picture = _Picture("Pairs of results of four channels are a product of pixels as they lie", 760, 265)
    picture.grid(10, 30, "aabbccdd ____aabbccdd ________aabbccdd", "windows of pairs (k = 3)")
    picture.text(10, 96, "four pixels of four channels each,")
    picture.text(10, 114, "two pixels further from pair to pair")
    picture.text(10, 150, "a row of a matrix is two pixels,")
    picture.text(10, 168, "sixteen bytes, wherever they lie")
    picture.text(252, 130, "x")
    taps = ["........"] * 16
    for pixel in range(4):
        for result in range(2):
            if 0 <= pixel - result < 3:
                for channel in range(4):
                    row = list(taps[4 * pixel + channel])
                    row[4 * result + channel] = "abc"[pixel - result]
                    taps[4 * pixel + channel] = "".join(row)
    picture.grid(275, 30, " ".join(taps), "taps, by channel")
    picture.text(400, 130, "=")
    picture.grid(425, 30, " ".join(["ddddcccc"] * 16), "pairs of results")
    picture.text(560, 60, "sixteen pairs of a row,")
    picture.text(560, 78, "four channels of each;")
    picture.text(560, 96, "their sums stay in registers")
    picture.text(560, 114, "for all k rows of sources")
    return picture


def _image_bands() -> _Picture:
    picture = _Picture("Sixteen images share the bands of a row of taps", 690, 265)
    picture.grid(10, 30, " ".join(["bbbbbbbb"] * 16), "sources: an octet")
    picture.text(134, 130, "x")
    rows = ["".join("a" if 0 <= column - x + 3 < 7 else "." for x in range(8)) for column in range(8)]
    picture.grid(155, 80, " ".join(rows), "band of taps")
    picture.text(280, 130, "=")
    picture.grid(300, 30, " ".join(["cccccccc"] * 16), "results: an octet")
    picture.text(430, 50, "rows are sixteen images: the same octet")
    picture.text(430, 68, "of the same row of each")
    picture.text(430, 104, "a band depends on how far apart the two")
    picture.text(430, 122, "octets are: down the image, the row of")
    picture.text(430, 140, "results below takes over the bands, which")
    picture.text(430, 158, "stay in registers")
    picture.text(430, 194, "where the image ends products end:")
    picture.text(430, 212, "nothing is padded")
    return picture


def _whole_planes() -> _Picture:
    picture = _Picture("Every result of a plane meets every source", 740, 225)
    picture.grid(10, 30, "....... ....... bbbbbbb ....... ....... ....... .......", "sources of an image")
    picture.grid(150, 30, "ccccccc" + " ......." * 6, "results of it")
    picture.grid(
        290, 30, " ".join(["............."] * 8 + ["aaaaaaaaaaaaa"] + ["............."] * 4), "taps, by distance"
    )
    picture.text(10, 160, "a lane's row of sources")
    picture.text(10, 178, "times a row of taps, which is the")
    picture.text(10, 196, "same for all lanes, in registers")
    picture.text(490, 60, "32 lanes own the same rows of")
    picture.text(490, 78, "results of 32 images, whose planes lie")
    picture.text(490, 96, "in shared memory, an odd number of")
    picture.text(490, 114, "words apart: each in its own bank")
    picture.text(490, 150, "a result meets 49 sources, and none")
    picture.text(490, 168, "of the padding around them")
    return picture


def _pixel_diagonals() -> _Picture:
    picture = _Picture("Taps are the diagonals of products of channels", 740, 280)
    picture.grid(10, 30, " ".join(["bbbbbbbb"] * 16), "input: 16 pixels x 8 channels")
    picture.text(10, 272, "and again, shifted by a tap")
    picture.grid(200, 30, " ".join(["cccccccc"] * 16), "output gradient: the same")
    picture.arrow(325, 120, 355, 120)
    diagonal = ["." * i + "a" + "." * (7 - i) for i in range(8)]
    picture.grid(375, 30, " ".join(diagonal + [row.replace("a", "d") for row in diagonal]), "products: two taps")
    picture.text(515, 60, "the diagonals are the sums of two")
    picture.text(515, 78, "taps of eight channels; the rest is")
    picture.text(515, 96, "of no use, and costs no memory")
    picture.text(515, 132, "both operands are read as they lie,")
    picture.text(515, 150, "turned by ldmatrix on its way")
    return picture


def _tiles() -> _Picture:
    picture = _Picture("A tile of a plane with its border in shared memory", 640, 200)
    rows = ["." * 20] * 2 + ["..aaaaaaaabbbbbbbb.."] * 6 + ["." * 20] * 2
    picture.grid(10, 30, " ".join(rows), "tile, fp32, with zeros around it")
    picture.arrow(300, 90, 330, 90)
    picture.text(345, 60, "a thread owns eight results of a row")
    picture.text(345, 80, "(weight gradient: eight taps of a kernel row)")
    picture.text(345, 110, "two accesses of sixteen bytes, one of them the")
    picture.text(345, 130, "same for the whole warp, feed 32 multiply-adds")
    return picture


def _gather() -> _Picture:
    picture = _Picture("Results a dilation apart share their sources", 640, 200)
    rows = ["a.a.a" if row % 2 == 0 else "....." for row in range(11)]
    picture.grid(10, 30, " ".join(rows), "sources of dilation 2")
    picture.arrow(95, 100, 125, 100)
    picture.grid(145, 50, "c _ c _ c _ c", "")
    picture.text(190, 60, "four results of a column, a dilation apart:")
    picture.text(190, 80, "6 rows of sources instead of 12 (k = 3)")
    picture.text(190, 110, "input gradient of stride s: only every s-th tap")
    picture.text(190, 130, "meets a result; its phase says which")
    return picture


def pictures() -> dict[str, str]:
    """Every picture, by name."""
    return {
        "small-planes": str(_small_planes()),
        "strips": str(_strips()),
        "slide": str(_slide()),
        "band": str(_band()),
        "diagonals": str(_diagonals()),
        "tiles": str(_tiles()),
        "window": str(_window()),
        "channel-products": str(_channel_products()),
        "image-bands": str(_image_bands()),
        "whole-planes": str(_whole_planes()),
        "pixel-diagonals": str(_pixel_diagonals()),
        "gather": str(_gather()),
    }
