"""Runs the properties that call kernels once more, with a sanitizer watching the kernels.

`cpu` builds the kernels with GCC's sanitizers; `cuda` runs them under compute-sanitizer, which watches `serial`.
"""
