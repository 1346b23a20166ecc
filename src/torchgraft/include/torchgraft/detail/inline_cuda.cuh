#pragma once
// Lists the headers that the text of a kernel for a GPU may use without including them
// (torchgraft.load_inline).

#include <torchgraft/detail/inline.h>

#include <torchgraft/cuda.cuh>
#include <torchgraft/sums.cuh>
