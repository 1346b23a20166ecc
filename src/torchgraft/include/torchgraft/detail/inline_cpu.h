#pragma once
// Lists the headers that the text of a kernel for a CPU may use without including them
// (torchgraft.load_inline).

#include <torchgraft/detail/inline.h>

#include <torchgraft/cpu.h>
#include <torchgraft/sums.h>
