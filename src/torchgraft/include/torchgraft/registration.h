// Joins a host function to an operator that Python has declared.
#pragma once

#include <torch/csrc/stable/library.h>

// TORCHGRAFT_KERNEL(mypackage, CPU, softplus, softplus_cpu): `softplus_cpu` is the kernel of
// `mypackage::softplus` on CPU. Every operator has two names, the public one that autograd knows and the raw
// one, with an underscore, that it does not (see torchgraft/operator.py); one kernel serves both.
#define TORCHGRAFT_KERNEL(NAMESPACE, DEVICE, OPERATOR, FUNCTION) \
  STABLE_TORCH_LIBRARY_IMPL(NAMESPACE, DEVICE, library) {        \
    library.impl(#OPERATOR, TORCH_BOX(&FUNCTION));               \
    library.impl("_" #OPERATOR, TORCH_BOX(&FUNCTION));           \
  }
