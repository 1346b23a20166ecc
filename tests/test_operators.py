"""Every operator of ours, proved against its reference: a case a property, device and dtype.

Some cases of operators that are gradients of another one are slow (conftest.py).
"""

from torchgraft.checking import make_test

test_operator = make_test()
