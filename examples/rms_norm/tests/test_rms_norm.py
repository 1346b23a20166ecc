"""Every property of every operator of the package, as `graft check` asks them."""

from torchgraft.checking import make_test

from rms_norm.operator import add_rms_norm_operator, rms_norm_backward_operator, rms_norm_operator

test_rms_norm = make_test(rms_norm_operator, add_rms_norm_operator, rms_norm_backward_operator, quick=True)
