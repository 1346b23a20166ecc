"""Training on several devices, each a process: what `tests/test_distributed.py` starts, and what it asks of them."""
