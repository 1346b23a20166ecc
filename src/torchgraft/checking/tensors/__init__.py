"""Makes, changes and compares the tensors of a check.

`guarded_memory` places tensors between guards, `strides` lays them out in every awkward way, and `compare` compares
results with float64. Nothing here knows an operator.
"""
