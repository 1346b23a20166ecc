"""Every operator of ours, proved against its reference: a case a property, device and dtype."""

from torchgraft.checking import make_test

test_operator = make_test()
