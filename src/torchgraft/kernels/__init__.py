"""Kernels in C++, CUDA, Python and Triton: how they are registered and chosen, and the record of missing ones."""
