"""Every operator of ours, proved against its reference: a case a property, device and dtype.

The slow cases ask more of each; of the others some are left out, as they repeat a proof (conftest.py).
"""

import pytest

from torchgraft.checking import make_test

test_operator = make_test(quick=True)
test_operator_thoroughly = pytest.mark.slow(make_test())
