#pragma once
// What the text of a kernel for a CPU may use without including it (torchgraft.load_inline).

#include <torchgraft/detail/inline.h>

#include <torchgraft/cpu.h>
#include <torchgraft/sums.h>
