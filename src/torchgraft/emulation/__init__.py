"""Runs CUDA kernels on the CPU, on a machine without a GPU and without the CUDA toolkit.

`translate` turns the sources into C++. `library` compiles them, with the emulator of CUDA in the folder `emulator`,
into a library that is loaded in the place of the CPU kernels. `graft check --emulate` does both, and `python -m
torchgraft.emulation` has more options. docs/design/emulator.md says what the emulator finds, and what it cannot find.
"""
