"""shift: each channel of a batch moves by a fractional offset of its own, which is learnt."""

from torchgraft.operators.shift.operator import shift, shift_grads, shift_input_grad, shift_offset_grad

__all__ = ["shift", "shift_grads", "shift_input_grad", "shift_offset_grad"]
