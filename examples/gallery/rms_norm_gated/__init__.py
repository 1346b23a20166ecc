"""RMSNorm of an input that is gated by SiLU, as in Mamba-2, with kernels in Helion."""

from importlib.util import find_spec

from rms_norm_gated.operator import rms_norm_gated as rms_norm_gated
from rms_norm_gated.operator import rms_norm_gated_backward as rms_norm_gated_backward

# Without Helion the reference answers.
if find_spec("helion") is not None:
    from rms_norm_gated import kernels as kernels
