#pragma once
// What the text of a kernel for a GPU may use without including it (torchgraft.load_inline).

#include <torchgraft/detail/inline.h>

#include <torchgraft/cuda.cuh>
#include <torchgraft/sums.cuh>
