"""Finds the modules and the samples that belong to an operator.

`places` imports a module from wherever it lies. `samples` finds the samples beside the declaration of an operator.
"""
