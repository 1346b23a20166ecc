"""Root-mean-square normalization of rows, with the addition of a residual where one is given."""

from pathlib import Path

from torch import Tensor
from torchgraft import building

from rms_norm.operator import add_rms_norm_operator, rms_norm_operator

_FOLDER = Path(__file__).parent

# In an installed wheel the compiled kernels lie in lib/. Elsewhere they are compiled here, once.
building.load("rms_norm", [_FOLDER / "cpu.cpp", _FOLDER / "cuda.cu"])


def rms_norm(
    input: Tensor, weight: Tensor, epsilon: float = 1e-6, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """Divides each row by its root mean square, and multiplies it by a weight.

    Biao Zhang and Rico Sennrich, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4.

    Args:
        input: (..., columns), float64, float32, float16 or bfloat16.
        weight: (columns,), of the dtype of input.
        epsilon: is added to the mean of the squares; it has no gradient.
        residual: like input. It is added to the input first, and the sum is normalized before it is rounded.

    Returns:
        input / sqrt(mean(input**2) + epsilon) * weight, the mean over each row. With a residual two tensors: that of
        the sum, and the sum.

    Raises:
        ValueError: shapes do not fit, or epsilon is negative or not finite.
        TypeError: dtypes do not fit, or something is no tensor.
    """
    if residual is None:
        output: Tensor = rms_norm_operator(input, weight, epsilon)
        return output
    both: tuple[Tensor, Tensor] = add_rms_norm_operator(input, residual, weight, epsilon)
    return both
