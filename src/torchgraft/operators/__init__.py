"""The operators of torchgraft, a folder each; `torchgraft/__init__.py` imports every one of them."""
