"""What computes a call: kernels in C++, CUDA, Python and Triton, how one is chosen, and the record of missing ones."""
