"""torch.fx.symbolic_trace records every function and layer: values, gradients, modes and hooks are those of the model.

Also what torch.jit.script says of layers, which it cannot compile.
"""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import torchgraft
from torchgraft import graft
from torchgraft.nn import LLTM, CausalConv1d, DepthwiseConv1d, DepthwiseConv2d, Linear, LLTMCell, Shift

D = torch.float64


def _randn(*shape):
    return torch.randn(shape, dtype=D, generator=torch.Generator().manual_seed(sum(shape)))


IMAGES, STEPS, ROWS = _randn(2, 4, 6, 5), _randn(7, 5, 3), _randn(5, 3)


class Model(nn.Module):
    """A model that passes its input, parameters and layers to a function."""

    def __init__(self, function, *parameters, **layers):
        super().__init__()
        self.function, self.count = function, len(parameters)
        for number, parameter in enumerate(parameters):
            setattr(self, f"parameter_{number}", nn.Parameter(parameter))
        for name, layer in layers.items():
            setattr(self, name, layer)
        # Not recorded as a value of its own: what is computed with it alone is a constant.
        self.constant = STEPS

    def forward(self, input):
        return self.function(self, input, *(getattr(self, f"parameter_{number}") for number in range(self.count)))


def _run(model, function, input):
    input = input.clone().requires_grad_()
    results = [result for result in tree_leaves(function(input)) if result is not None and result.is_floating_point()]
    loss = sum((result * result.detach().cos()).sum() for result in results)
    return results, torch.autograd.grad(loss, (input, *model.parameters()), allow_unused=True)


def _expect_recorded(model, input, recorded=None):
    recorded = torch.fx.symbolic_trace(model) if recorded is None else recorded
    recorded.graph.lint()
    torch.testing.assert_close(_run(model, recorded, input), _run(model, model, input))
    return recorded


OFFSETS, WEIGHTS = (_randn(4), _randn(4) + 1), (_randn(6, 3), _randn(6, 2), _randn(6))

FUNCTIONS = {
    "depthwise_conv2d, padding same": (
        lambda _, x, w: torchgraft.depthwise_conv2d(x, w, padding="same"),
        (_randn(4, 1, 3, 2),),
        IMAGES,
    ),
    "depthwise_conv2d of a constant, padding same": (
        lambda _, x, w: torchgraft.depthwise_conv2d(IMAGES, w, padding="same", dilation=2) + x,
        (_randn(4, 1, 3, 3),),
        IMAGES,
    ),
    "depthwise_conv2d_input_grad, padding same": (
        lambda _, x, w: torchgraft.depthwise_conv2d_input_grad(x, w, (4, 6, 5), padding="same"),
        (_randn(4, 1, 3, 3),),
        IMAGES,
    ),
    "depthwise_conv1d, padding same": (
        lambda _, x, w: torchgraft.depthwise_conv1d(x, w, padding="same"),
        (_randn(4, 1, 4),),
        IMAGES[..., 0],
    ),
    "depthwise_conv1d_input_grad, padding same": (
        lambda _, x, w: torchgraft.depthwise_conv1d_input_grad(x, w, (4, IMAGES.shape[2]), padding="same"),
        (_randn(4, 1, 3),),
        IMAGES[..., 0],
    ),
    "linear": (lambda _, x, w: torchgraft.linear(x, w), (_randn(3, 5),), IMAGES),
    "linear with bias": (lambda _, x, w, b: torchgraft.linear(x, w, bias=b), (_randn(3, 5), _randn(3)), IMAGES),
    "mul_constant": (lambda _, x, w: torchgraft.mul_constant(x * w, 2.5), (_randn(5),), IMAGES),
    "mul_constant by a size": (lambda _, x, w: torchgraft.mul_constant(x * w, x.shape[1]), (_randn(5),), IMAGES),
    "shift": (lambda _, x, *offsets: torchgraft.shift(x, *offsets), OFFSETS, IMAGES),
    "shift, stride 2": (lambda _, x, a, b: torchgraft.shift(x, a, y_offset=b, stride=2), OFFSETS, IMAGES),
    "shift, stride a size": (lambda _, x, *offsets: torchgraft.shift(x, *offsets, x.shape[0]), OFFSETS, IMAGES),
    "shift by what is computed": (
        lambda _, x, images, y: torchgraft.shift(images, x.mean((0, 2, 3)), y),
        (_randn(2, 4, 6, 5), OFFSETS[1]),
        IMAGES,
    ),
    "shift_input_grad": (
        lambda _, x, *offsets: torchgraft.shift_input_grad(x, *offsets, x.shape[2]),
        OFFSETS,
        IMAGES,
    ),
    "shift_input_grad, all arguments": (
        lambda _, x, *offsets: torchgraft.shift_input_grad(x, *offsets, 12, channels_last=True, stride=2),
        OFFSETS,
        IMAGES,
    ),
    "shift_offset_grad": (
        lambda _, x, *rest: torchgraft.shift_offset_grad(x, *rest),
        (_randn(2, 4, 6, 5), *OFFSETS),
        IMAGES,
    ),
    "shift_grads": (
        lambda _, x, *rest: torchgraft.shift_grads(x, *rest, stride=2),
        (_randn(2, 4, 12, 5), *OFFSETS),
        IMAGES,
    ),
    "lltm_cell": (lambda _, x, *w: torchgraft.lltm_cell(x, x[:, :2], x[:, 1:], *w), WEIGHTS[:2], ROWS),
    "lltm_cell with bias": (
        lambda _, x, *w: (lambda h, c: h * c)(*torchgraft.lltm_cell(x, x[:, :2], x[:, 1:], *w)),
        WEIGHTS,
        ROWS,
    ),
    "lltm_cell of a constant": (
        lambda model, x, *w: torchgraft.lltm_cell(model.constant[0], x[:, :2], x[:, 1:], *w),
        WEIGHTS,
        ROWS,
    ),
    "lltm": (lambda _, x, *w: torchgraft.lltm(x, x[0, :, :2], x[0, :, 1:], *w), WEIGHTS[:2], STEPS),
    "lltm with bias, reverse": (
        lambda _, x, *w: torchgraft.lltm(x, x[0, :, :2], x[0, :, 1:], *w, reverse=True),
        WEIGHTS,
        STEPS,
    ),
    "lltm of packed steps": (
        lambda _, x, *w: torchgraft.lltm(x, x[:3, :2], x[:3, 1:], *w, torch.tensor([3, 2])),
        WEIGHTS,
        ROWS,
    ),
    "lltm of packed constants": (
        lambda model, x, *w: torchgraft.lltm(model.constant[0], x[:3, :2], x[:3, 1:], *w, torch.tensor([3, 2])),
        WEIGHTS,
        ROWS,
    ),
    "depthwise_conv2d": (lambda _, x, w: torchgraft.depthwise_conv2d(x, w), (_randn(4, 1, 3, 3),), IMAGES),
    "depthwise_conv2d, all arguments": (
        lambda _, x, w, b: torchgraft.depthwise_conv2d(x, w, b, (1, 1), "same", 2, groups=4),
        (_randn(8, 1, 3, 2), _randn(8)),
        IMAGES,
    ),
    "depthwise_conv2d_input_grad": (
        lambda _, x, w: torchgraft.depthwise_conv2d_input_grad(x, w, (4, 8, 7)),
        (_randn(4, 1, 3, 3),),
        IMAGES,
    ),
    "depthwise_conv2d_input_grad of a size": (
        lambda _, x, w: torchgraft.depthwise_conv2d_input_grad(x, w, x.shape[1:], True, 1, 1),
        (_randn(4, 1, 3, 3),),
        IMAGES,
    ),
    "depthwise_conv1d, all arguments": (
        lambda _, x, w, b: torchgraft.depthwise_conv1d(x, w, b, (2,), 1, 2, groups=4),
        (_randn(8, 1, 3), _randn(8)),
        IMAGES[..., 0],
    ),
    "depthwise_conv1d_input_grad of a size": (
        lambda _, x, w: torchgraft.depthwise_conv1d_input_grad(x, w, x.shape[1:], True, 1, 1),
        (_randn(4, 1, 3),),
        IMAGES[..., 0],
    ),
    "depthwise_conv1d_weight_grad": (
        lambda _, x, grads: torchgraft.depthwise_conv1d_weight_grad(grads, x, 3, padding="same", dtype=D),
        (_randn(2, 4, 6),),
        IMAGES[..., 0],
    ),
    "causal_conv1d": (lambda _, x, w: torchgraft.causal_conv1d(x, w), (_randn(5, 4),), STEPS),
    "causal_conv1d, all arguments": (
        lambda _, x, w, b, state: (lambda output, final: output.sum() * final)(
            *torchgraft.causal_conv1d(
                x, w, b, activation="silu", initial_state=state.expand(x.shape[0], 5, 2), return_final_state=True
            )
        ),
        (_randn(5, 3), _randn(5), _randn(1, 5, 2)),
        STEPS,
    ),
    "causal_conv1d of packed sequences": (
        lambda _, x, w: torchgraft.causal_conv1d(x[:1], w, cu_seqlens=torch.tensor([0, 1, 3])),
        (_randn(5, 4),),
        STEPS,
    ),
    "causal_conv1d_update": (
        lambda _, x, w: (
            torchgraft.causal_conv1d_update(x.detach(), torch.zeros(7, 5, 3, dtype=D), w.detach()) + x * w.sum()
        ),
        (_randn(5, 4),),
        STEPS,
    ),
    "depthwise_conv2d_weight_grad": (
        lambda _, x, images: torchgraft.depthwise_conv2d_weight_grad(x, images, (3, 3), padding="same", dtype=D),
        (_randn(2, 4, 6, 5),),
        IMAGES,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function, parameters, input = FUNCTIONS[name]
    _expect_recorded(Model(function, *parameters), input)


LAYERS = {
    "Linear": (lambda: Linear(5, 3, dtype=D), IMAGES),
    "Linear without bias": (lambda: Linear(5, 3, bias=False, dtype=D), IMAGES),
    "DepthwiseConv1d": (lambda: DepthwiseConv1d(4, dtype=D), IMAGES[..., 0]),
    "DepthwiseConv2d": (lambda: DepthwiseConv2d(4, dtype=D), IMAGES),
    "DepthwiseConv2d, all arguments": (
        lambda: DepthwiseConv2d(4, (3, 2), 2, 1, 2, False, 2, "circular", dtype=D),
        IMAGES,
    ),
    "CausalConv1d": (lambda: CausalConv1d(5, dtype=D), STEPS),
    "CausalConv1d, all arguments": (lambda: CausalConv1d(5, 3, False, "silu", dtype=D), STEPS),
    "Shift": (lambda: Shift(4, dtype=D), IMAGES),
    "Shift, stride 2": (lambda: Shift(4, 2, dtype=D), IMAGES),
    "Shift by the published rule": (lambda: Shift(4, 2, offset_gradient="shift_gcn", dtype=D), IMAGES),
    "LLTMCell": (lambda: LLTMCell(3, 4, dtype=D), ROWS),
    "LLTMCell without bias": (lambda: LLTMCell(3, 4, bias=False, dtype=D), ROWS),
    "LLTM": (lambda: LLTM(3, 4, dtype=D), STEPS),
    "LLTM, all arguments": (lambda: LLTM(3, 4, 3, False, True, 0.0, True, dtype=D), STEPS),
    "LLTM without a batch": (lambda: LLTM(3, 4, 2, dtype=D), STEPS[:, 0]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    make, input = LAYERS[name]
    layer = make()
    _expect_recorded(layer, input)
    model = Model(lambda model, x: model.layer(x), layer=layer)
    recorded = _expect_recorded(model, input)
    # Parameters are those of the layer, under the same names.
    assert dict(recorded.named_parameters()) == dict(model.named_parameters())
    for other in (copy.deepcopy(recorded), pickle.loads(pickle.dumps(recorded))):
        torch.testing.assert_close(other(input), recorded(input), rtol=0, atol=0)
    # A size is not recorded: a longer batch, sequence or image will do.
    longer = torch.cat((input, input))
    torch.testing.assert_close(recorded(longer), model(longer))


STATES = {
    "a pair": (lambda model, x: model.cell(x, (x[:, :2], x[:, 1:])), {"cell": (LLTMCell, 3, 2)}, ROWS),
    "none, and no batch": (lambda model, x: model.cell(x.sum(0)), {"cell": (LLTMCell, 3, 2)}, ROWS),
    "the states of the step before": (
        lambda model, x: model.cell(x, model.cell(x)),
        {"cell": (LLTMCell, 3, 2)},
        ROWS,
    ),
    "states of a constant input": (
        lambda model, x: model.cell(model.constant[0], [x[:, :2], x[:, 1:]]),
        {"cell": (LLTMCell, 3, 2)},
        ROWS,
    ),
    "none, of a constant input": (
        lambda model, x: x.sum() * model.cell(model.constant[0])[0],
        {"cell": (LLTMCell, 3, 2)},
        ROWS,
    ),
    "of sequences": (
        lambda model, x: model.other(*model.layer(x)),
        {"layer": (LLTM, 3, 2), "other": (LLTM, 2, 2)},
        STEPS,
    ),
    "of a sequence of constants": (
        lambda model, x: model.layer(model.constant, (x[:1, :, :2], x[:1, :, 1:])),
        {"layer": (LLTM, 3, 2)},
        STEPS,
    ),
    "of one part of a sequence": (
        lambda model, x: (lambda output, states: (output * 2, states[0] + states[1]))(*model.layer(x)),
        {"layer": (LLTM, 3, 2)},
        STEPS,
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_states(name):
    function, layers, input = STATES[name]
    layers = {key: kind(*sizes, dtype=D) for key, (kind, *sizes) in layers.items()}
    _expect_recorded(Model(function, **layers), input)


def test_the_published_rule_of_a_constant():
    model = Model(lambda model, x: x.mean() * model.layer(IMAGES), layer=Shift(4, 1, 1.0, "shift_gcn", dtype=D))
    _expect_recorded(model, ROWS)


@torch.fx.wrap
def _pack(input, lengths):
    return pack_padded_sequence(input, lengths)


def test_packed_sequences():
    model = Model(lambda model, x: model.layer(_pack(x, [7, 4, 4, 2, 1])), layer=LLTM(3, 4, 2, dtype=D))
    _expect_recorded(model, STEPS)


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 2)])
def test_a_step_of_decoding_writes_to_the_state_that_it_is_given(shape, is_read):
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = CausalConv1d(3, 4, activation="silu", dtype=D)

        def forward(self, input, state):
            output = self.layer.step(input, state)
            return output if is_read else state + 0

    step = Step()
    recorded = torch.fx.symbolic_trace(step)
    recorded.graph.eliminate_dead_code()
    recorded.recompile()
    state = _randn(2, 3, 3)
    other = state.clone()
    with torch.no_grad():
        torch.testing.assert_close(recorded(_randn(*shape), state), step(_randn(*shape), other))
    assert torch.equal(state, other)


@pytest.mark.parametrize("is_root", [True, False])
def test_dropout_follows_the_mode_of_the_recorded_model(is_root):
    layer = LLTM(3, 4, 2, dropout=1.0, dtype=D)
    model = layer if is_root else Model(lambda model, x: model.layer(x), layer=layer)
    recorded = torch.fx.symbolic_trace(model)
    for mode in (True, False, True):
        model.train(mode), recorded.train(mode)
        for function in (recorded, copy.deepcopy(recorded)):
            torch.testing.assert_close(function(STEPS), model(STEPS))
    assert not model(STEPS)[0].equal(model.eval()(STEPS)[0])


@pytest.mark.parametrize("make", [lambda: Shift(4, dtype=D), lambda: DepthwiseConv2d(4, dtype=D)])
def test_hooks_run_once(make):
    layer = make()
    layer.register_forward_pre_hook(lambda layer, arguments: (arguments[0] + 1,))
    layer.register_forward_hook(lambda layer, arguments, result: 2 * result)
    _expect_recorded(Model(lambda model, x: model.layer(x), layer=layer), IMAGES)
    layer = LLTMCell(3, 4, dtype=D)
    layer.register_forward_hook(lambda layer, arguments, result: (result[0] + 1, 3 * result[1]))
    _expect_recorded(Model(lambda model, x: model.layer(x), layer=layer), ROWS)


def test_what_records_parameters_without_their_sizes():
    tracer = torch.fx.Tracer(param_shapes_constant=True)
    for layer, input in ((LLTM(3, 4, dtype=D), STEPS), (LLTMCell(3, 4, dtype=D), ROWS), (Shift(4, dtype=D), IMAGES)):
        model = Model(lambda model, x: model.layer(x), layer=layer)
        _expect_recorded(model, input, torch.fx.GraphModule(model, tracer.trace(model)))


def test_what_is_no_tensor_is_still_refused():
    class Number:
        pass

    for call in (
        lambda: torchgraft.shift(IMAGES, *OFFSETS, Number()),
        lambda: torchgraft.mul_constant(IMAGES, Number()),
        lambda: torchgraft.shift_input_grad(IMAGES, *OFFSETS, 6, Number()),
        lambda: torchgraft.lltm_cell(Number(), ROWS, ROWS, *WEIGHTS),
        lambda: LLTM(3, 4)(Number()),
        lambda: Shift(4, offset_gradient="shift_gcn")(Number()),
    ):
        with pytest.raises(TypeError, match="got Number"):
            call()


class TestScript:
    """torch.jit.script compiles grafted layers; those of torchgraft it cannot, and says so at once, however deep."""

    @pytest.mark.parametrize("name", LAYERS)
    def test_a_layer(self, name):
        layer = LAYERS[name][0]()
        message = (
            rf"torch.jit.script cannot compile the layer torchgraft\.nn\..*{type(layer).__name__}: .*torch.jit.trace"
        )
        for model in (layer, nn.Sequential(nn.ReLU(), nn.ModuleDict({"deep": nn.Sequential(layer)}))):
            with pytest.raises(TypeError, match=message):
                torch.jit.script(model)

    def test_a_grafted_model(self):
        model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU())
        images = IMAGES.float()
        expected = model(images)
        torch.testing.assert_close(torch.jit.script(graft(model))(images), expected)
        torch.testing.assert_close(torch.jit.trace(model, (images,))(images), expected)
        torch.testing.assert_close(torch.jit.script(torchgraft.ungraft(model))(images), expected)
