"""The operator is wired up: on its smallest samples it runs and gives what its declaration promises.

Proves: this takes a few seconds, before all other checks. There is a kernel. On the three smallest samples that are not
empty, the results have the sizes, strides and dtypes that `output` or `shapes` promises, and the values and gradients
of the reference. These calls leave their arguments and the settings of the process as they are.

Cannot prove: anything about larger inputs or inputs of another kind. All other properties check those.

Mend: the message is about the wiring. Without a kernel: build and load the library, and compare the names in
`TORCHGRAFT_KERNEL` with the schema. With another layout: `output` or `shapes` and the kernel must allocate alike, as by
`empty_as(to_dense(input))`. With wrong values: go to `value`.

Example: `TORCHGRAFT_KERNEL(package, CPU, rms_nrom, copy_cpu)` leaves the operator rms_norm without a kernel.
"""

import itertools
import time
from contextlib import suppress

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.promised_layout import layout_difference
from torchgraft.checking.helpers.settings import settings_kept
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.inputs_and_outputs import expect_unwritten
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import expect

_SAMPLES = 3
# No other sample is asked once this thread has worked so long: what other programs take does not count.
_SECONDS = 5.0


def check(case: Case) -> None:
    """See the module."""
    began = time.thread_time()
    smallest = case.table(empty=False)[:_SAMPLES]
    # These are mostly the first calls in this process: what an operator changes only once shows here.
    with settings_kept():
        # A kernel that writes to its arguments gives wrong gradients, so that is asked before.
        questions = (_check_promise, expect_unwritten, check_value, _check_gradient)
        for ask, sample in itertools.product(questions, smallest):
            # The smallest sample is asked all, however slow the machine is.
            if sample is smallest[0] or time.thread_time() - began < _SECONDS:
                case.each(ask, [sample])
        # What is changed once does not show in the same calls again.
        case.asked = None


def _check_promise(call: Call) -> None:
    difference = layout_difference(call)
    expect(not difference, f"the results differ from the declaration: {difference}")


def _check_gradient(call: Call) -> None:
    # Where no argument has a gradient, all else has been asked.
    with suppress(NotApplicable):
        check_gradient(call)


PROPERTY = Property(check)
