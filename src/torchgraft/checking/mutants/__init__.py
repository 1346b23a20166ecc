"""Finds small changes of the kernels that no sample detects: `graft check --mutants`.

`changes` finds the changes and rewrites a source so that it holds many of them; `run` builds and asks about them, and
`ask` is the process that runs the samples.
"""
