// Numbers as two of float16 or bfloat16: what lltm shares with recurrences of any cell.
#pragma once

#include <torchgraft/detail/recurrence_split.cuh>

namespace torchgraft::lltm::cuda {

using recurrence::finite_magnitude;
using recurrence::largest_of_block;
using recurrence::largest_of_warp;
using recurrence::power_to_fill_half;
using recurrence::rounded_to_no_zero;
using recurrence::rounded_towards_zero;
using recurrence::Split;

}  // namespace torchgraft::lltm::cuda
