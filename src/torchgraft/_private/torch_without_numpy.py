"""Imports PyTorch, without its warning where there is no NumPy.

PyTorch warns when it first looks for NumPy, which happens while it is imported; what needs NumPy raises an error of its
own later. torchgraft needs none, so the warning would stand above the output of every command and tell nobody anything.
"""

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    import torch as torch
