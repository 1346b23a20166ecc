"""The operator and the layers that use it survive pickling and copying.

Proves: the operator pickles and deep-copies to itself. Each layer that its samples name gives the same results, bit for
bit, after pickling, after a deep copy, and as a new layer with its `state_dict`. `layers` is the number of these
layers.

Cannot prove: anything about layers that the samples do not name.

Mend: keep what a layer needs in parameters, buffers and constructor arguments, and look the operator up by its module
instead of holding a closure.

Example: a layer keeps a number that its state_dict does not hold.
"""

import copy
import io
import pickle

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import expect, expect_equal, expect_same
from torchgraft.sampling import ModuleSample


def check(case: Case) -> None:
    """See the module."""
    case.progress("the operator")
    expect(
        pickle.loads(pickle.dumps(case.operator)) is case.operator, "a pickled operator comes back as another object"
    )
    expect(copy.deepcopy(case.operator) is case.operator, "a deep copy of the operator is another object")
    case.facts["layers"] = len(case.samples.modules)
    for sample in case.samples.modules:
        case.progress(f"layer {sample.name!r}")
        _check_layer(case, sample)


def _check_layer(case: Case, sample: ModuleSample) -> None:
    generator = torch.Generator().manual_seed(case.seed)
    inputs = [each.make(case.device, case.dtype, generator) for each in sample.inputs]

    def new() -> torch.nn.Module:
        return sample.make().to(case.device, case.dtype)

    layer = new()
    expected = tree_leaves(layer(*inputs))

    state = io.BytesIO()
    torch.save(layer.state_dict(), state)
    state.seek(0)
    restored = new()
    restored.load_state_dict(torch.load(state, weights_only=True))

    for found, how in (
        (pickle.loads(pickle.dumps(layer)), "pickled"),
        (copy.deepcopy(layer), "deep-copied"),
        (restored, "made anew, with its state_dict,"),
    ):
        what = f"the result of the layer {sample.name!r}, {how}"
        expect_equal(tree_leaves(found(*inputs)), expected, what=what)
        kept, trained = (
            [name for name, parameter in each.named_parameters() if parameter.requires_grad] for each in (found, layer)
        )
        expect_same(kept, trained, f"the layer {sample.name!r}, {how} has other parameters to train")


PROPERTY = Property(check, of_samples=False, of_kernels=False)
