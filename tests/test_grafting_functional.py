"""graft(model) where a module calls causal_conv1d as a function, as those of transformers, mamba_ssm and fla do."""

import copy
import importlib
import inspect
import io
import itertools
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

import callers
import published
import torchgraft
from callers import Mixer
from grafts import calls_of
from published import causal_conv1d_fn, causal_conv1d_update
from torchgraft import graft, graft_report, ungraft

FORWARD, STEP, PACKED = "causal_conv1d", "_causal_conv1d_update", "causal_conv1d_packed"


def values_and_gradients(module, *arguments, **named):
    module.zero_grad()
    output = module(*arguments, **named)
    output.square().sum().backward()
    return output, {name.removeprefix("_orig_mod."): each.grad for name, each in module.named_parameters()}


SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
LINEAR = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 8}
# Jamba and Zamba call their layer where the packages for a GPU are not wanted.
SCANNED = {
    "use_mamba_kernels": False,
    "mamba_d_state": 4,
    "mamba_dt_rank": 4,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "attention_hidden_size": 64,
    "attention_head_dim": 16,
}
# Classes of transformers 4.57, what they are made of, and the operators of a prompt and of five more tokens.
MODELS = {
    "Mamba": ({"state_size": 4}, ["depthwise_conv1d"] * 2),
    "Mamba2": (
        {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
        ["depthwise_conv1d"] * 2,
    ),
    "Bamba": ({**ATTENTION, **HEADS, "attn_layer_indices": [1]}, ["depthwise_conv1d"]),
    "Lfm2": ({**ATTENTION, "layer_types": ["conv", "full_attention"]}, ["depthwise_conv1d"]),
    "Jamba": ({**ATTENTION, **SCANNED, "attn_layer_period": 2, "attn_layer_offset": 1}, ["depthwise_conv1d"]),
    "Zamba": (
        {**ATTENTION, **SCANNED, "layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 2},
        ["depthwise_conv1d"] * 2,
    ),
    "Qwen3Next": (
        {**ATTENTION, **LINEAR, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
        ["depthwise_conv1d", *[STEP] * 5],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(name):
    """On a CPU, without the package causal-conv1d: those of 4.57 call a layer for the prompt, and Qwen3-Next a function
    for each token."""
    import transformers

    sizes, operators = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **sizes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).double().eval()
    tokens = torch.randint(3, 64, (2, 9))

    def run():
        model.zero_grad()
        result = model(tokens, labels=tokens, use_cache=False)
        result.loss.backward()
        return result.logits, [each.grad for each in model.parameters()]

    def generate():
        settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
        given = {"attention_mask": torch.ones_like(tokens), "output_logits": True, "return_dict_in_generate": True}
        return torch.stack(model.generate(tokens, **settings, **given).logits)

    expected, expected_tokens = run(), generate()
    before = [dict(vars(module)) for module in model.modules()]
    graft(model)
    torch.testing.assert_close(run(), expected)
    torch.testing.assert_close(generate(), expected_tokens)
    assert calls_of(generate) == operators
    ungraft(model)
    assert [dict(vars(module)) for module in model.modules()] == before
    assert not calls_of(generate)


def test_the_path_of_transformers_that_needs_other_packages(monkeypatch):
    """Lfm2 of 4.57 takes this path on CUDA where the package is installed; here it is called by its name."""
    from transformers import Lfm2Config
    from transformers.models.lfm2 import modeling_lfm2

    config = Lfm2Config(**SIZES, **ATTENTION, layer_types=["conv", "conv"])
    layer = modeling_lfm2.Lfm2ShortConv(config, 0)
    hidden = torch.randn(2, 7, 32)
    assert not graft_report(layer).functions
    monkeypatch.setattr(modeling_lfm2, "causal_conv1d_fn", published.causal_conv1d_fn)
    monkeypatch.setattr(modeling_lfm2, "causal_conv1d_update", published.causal_conv1d_update)
    expected = layer.cuda_kernels_forward(hidden)
    graft(layer)
    assert graft_report(layer).functions == {"": ("causal_conv1d_fn", "causal_conv1d_update")}
    assert calls_of(lambda: layer.cuda_kernels_forward(hidden)) == [FORWARD]
    torch.testing.assert_close(layer.cuda_kernels_forward(hidden), expected)


@pytest.mark.parametrize("name", ["Jamba", "Zamba"])
def test_a_prompt_and_tokens_through_packages_that_jamba_and_zamba_want(name, monkeypatch):
    """With the package causal-conv1d these give it the weights of their layer; the scans are another package's."""
    import transformers

    modeling = importlib.import_module(f"transformers.models.{name.lower()}.modeling_{name.lower()}")
    config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name][0])
    torch.manual_seed(0)
    mixer = getattr(modeling, f"{name}MambaMixer")(config, 0).double()
    assert graft_report(mixer).graftable == ("conv1d",)
    monkeypatch.setattr(modeling, "causal_conv1d_fn", published.causal_conv1d_fn)
    monkeypatch.setattr(modeling, "causal_conv1d_update", published.causal_conv1d_update)

    def scan(inputs, *others, **named):
        return inputs.cumsum(-1), inputs.new_zeros(*inputs.shape[:2], config.mamba_d_state)

    monkeypatch.setattr(modeling, "selective_scan_fn", scan)
    monkeypatch.setattr(modeling, "selective_state_update", lambda state, inputs, *others, **named: inputs)
    prompt, token = (torch.randn(2, length, 32, dtype=torch.float64) for length in (7, 1))

    def trained():
        mixer.zero_grad()
        output = mixer.cuda_kernels_forward(prompt)
        output.square().sum().backward()
        return output, {name: each.grad for name, each in mixer.named_parameters()}

    @torch.no_grad()
    def decoded():
        kind = {"Jamba": "HybridMambaAttentionDynamicCache", "Zamba": "ZambaHybridDynamicCache"}[name]
        cache = getattr(modeling, kind)(config, 2, dtype=torch.float64)
        outputs = [mixer.cuda_kernels_forward(prompt, cache)]
        cache.has_previous_state = True
        outputs += [mixer.cuda_kernels_forward(each * token, cache) for each in (1, 2)]
        return outputs, cache.conv_states[0]

    expected, expected_steps = trained(), decoded()
    graft(mixer)
    assert graft_report(mixer).functions == {"": ("causal_conv1d_fn", "causal_conv1d_update")}
    torch.testing.assert_close(trained(), expected)
    torch.testing.assert_close(decoded(), expected_steps)
    assert calls_of(lambda: mixer.cuda_kernels_forward(prompt)) == [FORWARD]
    assert calls_of(decoded) == [FORWARD, STEP, STEP]
    ungraft(mixer)
    assert not calls_of(decoded)


def test_functions_that_a_helper_hands_out(monkeypatch):
    """Mamba of 4.57 asks a function of its file for a pair of them."""
    from transformers import MambaConfig
    from transformers.models.mamba import modeling_mamba

    pair = published.causal_conv1d_update, published.causal_conv1d_fn
    monkeypatch.setattr(modeling_mamba, "_causal_conv1d_cache", pair)
    monkeypatch.setattr(modeling_mamba, "selective_scan_fn", lambda inputs, *others, **named: (inputs, None))
    mixer = modeling_mamba.MambaMixer(MambaConfig(**SIZES, state_size=4), 0).eval()
    hidden = torch.randn(2, 7, 32)
    expected = mixer.cuda_kernels_forward(hidden)
    graft(mixer)
    assert calls_of(lambda: mixer.cuda_kernels_forward(hidden)) == [FORWARD]
    torch.testing.assert_close(mixer.cuda_kernels_forward(hidden), expected)
    assert modeling_mamba._causal_conv1d_cache is pair


class Bound(nn.Module):
    """A module like those of mamba_ssm: the package's functions are bound when the file is imported."""

    def __init__(self, channels=6, width=4):
        super().__init__()
        self.conv1d = nn.Conv1d(channels, channels, width, groups=channels)

    def forward(self, x, seq_idx=None, state=None):
        weight = self.conv1d.weight.squeeze(1)
        if state is not None:
            return causal_conv1d_update(x, state, weight, self.conv1d.bias, "swish")
        return causal_conv1d_fn(x, weight, self.conv1d.bias, seq_idx, activation="swish")


class Attributes(nn.Module):
    """A module like the layers of Qwen3-Next in transformers 4.57, and of Mamba in fla."""

    def __init__(self, channels=6, width=4):
        super().__init__()
        self.conv1d = nn.Conv1d(channels, channels, width, groups=channels)
        self.causal_conv1d_fn = causal_conv1d_fn
        self.step = causal_conv1d_update

    def forward(self, x, seq_idx=None, state=None):
        weight = self.conv1d.weight.squeeze(1)
        if state is not None:
            return self.step(x, state, weight, self.conv1d.bias, "silu")
        return self.causal_conv1d_fn(x=x, weight=weight, bias=self.conv1d.bias, activation="silu", seq_idx=seq_idx)


KINDS = {"Mixer": Mixer, "Bound": Bound, "Attributes": Attributes}
INPUTS = {"Mixer": (2, 7, 6), "Bound": (2, 6, 7), "Attributes": (2, 6, 7)}
STEPS = {"Mixer": (2, 1, 6), "Bound": (2, 6), "Attributes": (2, 6)}


def by_file(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "itself": lambda module, input: module,
    "deepcopy": lambda module, input: copy.deepcopy(module),
    "pickle": lambda module, input: pickle.loads(pickle.dumps(module)),
    "a file": lambda module, input: by_file(module),
    "a shallow copy": lambda module, input: copy.copy(copy.deepcopy(module)),
    "compiled": lambda module, input: torch.compile(module, backend="aot_eager", fullgraph=True),
    "exported": lambda module, input: torch.export.export(module, (input,)).module(),
    "traced": lambda module, input: torch.jit.trace(module, (input,)),
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("name", KINDS)
def test_copies_compute_and_train(name, make):
    torch.manual_seed(0)
    module, input = KINDS[name]().double(), torch.randn(INPUTS[name], dtype=torch.float64)
    expected = values_and_gradients(module, input)
    made = make(graft(copy.deepcopy(module)), input)
    torch.testing.assert_close(values_and_gradients(made, input), expected)
    if make is not COPIES["compiled"]:  # torch.compile runs in no mode that listens.
        assert calls_of(lambda: made(input)) == [FORWARD]
    assert not calls_of(lambda: module(input))


@pytest.mark.parametrize("name", KINDS)
class TestKinds:
    """Statements that hold however a module reaches the functions."""

    def test_grafting_is_undone_and_touches_nothing_else(self, name):
        module, other = KINDS[name](), KINDS[name]()
        before = [dict(vars(each)) for each in module.modules()]
        shared = dict(vars(callers)), dict(vars(published)), dict(globals())
        graft(graft(module))
        assert (dict(vars(callers)), dict(vars(published)), dict(globals())) == shared
        assert not calls_of(lambda: other(torch.randn(INPUTS[name])))
        assert [dict(vars(each)) for each in ungraft(module).modules()] == before

    def test_the_report_names_the_functions(self, name):
        model = nn.Sequential(KINDS[name]())
        names = "causal_conv1d_fn", "causal_conv1d_update"
        assert graft_report(model).graftable == ("0", "0.conv1d")
        report = graft_report(graft(model))
        assert report.grafted == ("0", "0.conv1d")
        assert report.functions == {"0": names}
        assert "  grafted    0, its calls of causal_conv1d_fn and causal_conv1d_update\n" in f"{report}\n"

    def test_steps_of_decoding(self, name):
        module, input = KINDS[name](), torch.randn(STEPS[name])
        state = torch.randn(2, 6, 4)
        theirs, ours = state.clone(), state.clone()
        with torch.no_grad():
            expected = module(input, conv_state=theirs) if name == "Mixer" else module(input, state=theirs)
            graft(module)

            def step():
                return module(input, conv_state=ours) if name == "Mixer" else module(input, state=ours)

            torch.testing.assert_close(step(), expected)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
            assert calls_of(step) == [STEP]

    def test_a_replica_computes_with_its_own_weights(self, name):
        module, input = graft(KINDS[name]()), torch.randn(INPUTS[name])
        replica = module._replicate_for_data_parallel()
        # As `torch.nn.DataParallel` does, which sets the replicas of submodules and then their weights.
        replica._modules = {each: copy.deepcopy(value) for each, value in module._modules.items()}
        replica.conv1d.weight.data.mul_(2)
        other = copy.deepcopy(module)
        other.conv1d.weight.data.mul_(2)
        torch.testing.assert_close(replica(input), other(input), rtol=0, atol=0)

    def test_autocast_keeps_the_dtype_of_the_input(self, name):
        module, input = KINDS[name]().bfloat16(), torch.randn(INPUTS[name]).bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = module(input)
            assert calls_of(lambda: graft(module)(input)) == [FORWARD]
            found = module(input)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7)

    def test_a_forward_that_another_tool_has_replaced(self, name):
        module = KINDS[name]()
        theirs = module.forward
        module.forward = lambda *arguments, **named: theirs(*arguments, **named)
        report = graft_report(graft(module))
        if name == "Attributes":  # Its calls do not hang on its forward.
            assert report.functions[""]
            assert calls_of(lambda: module(torch.randn(INPUTS[name]))) == [FORWARD]
        else:
            assert "its forward was replaced" in report.left[""]


def test_a_compiled_module_and_one_that_is_not_grafted_share_no_code():
    plain, input = Mixer(), torch.randn(2, 7, 6)
    grafted = graft(copy.deepcopy(plain))
    seen = []

    def note(graph, example):
        seen.append(any(node.target is torch.conv1d for node in graph.graph.nodes))
        return graph.forward

    for module in (grafted, plain, grafted):
        torch.testing.assert_close(torch.compile(module, backend=note, fullgraph=True)(input), plain(input))
    assert seen == [False, True]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_method_that_a_class_gets_after_its_module_was_grafted(name, compiled, monkeypatch):
    module, input = graft(KINDS[name]()), torch.randn(INPUTS[name])
    theirs = KINDS[name].forward
    monkeypatch.setattr(KINDS[name], "forward", lambda self, *arguments: 2 * theirs(self, *arguments))
    expected = ungraft(copy.deepcopy(module))(input)
    run = torch.compile(module, backend="aot_eager", fullgraph=True) if compiled else module
    torch.testing.assert_close(run(input), expected)
    assert compiled or calls_of(lambda: module(input)) == [FORWARD]


FACTOR, PASSES = 1.0, 0


class Counting(nn.Module):
    """Reads a variable of its file, and writes one, before and after a method of its own that does so too."""

    def __init__(self):
        super().__init__()
        self.conv1d = nn.Conv1d(6, 6, 4, groups=6)

    def forward(self, x):
        global PASSES
        PASSES += 1
        return self.convolved(x) + PASSES

    def convolved(self, x):
        global PASSES
        PASSES += 10
        return FACTOR * causal_conv1d_fn(x, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation=None)


class Outer(Counting):
    """Calls the function in both methods, so that both are copied."""

    def forward(self, x):
        global PASSES
        PASSES += 1
        first = causal_conv1d_fn(x, self.conv1d.weight.squeeze(1), self.conv1d.bias, activation=None)
        return first + self.convolved(x) + PASSES


@pytest.mark.parametrize("kind", [Counting, Outer])
def test_variables_of_a_file_are_read_and_written_as_the_file_has_them(kind, monkeypatch):
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "FACTOR", 1.0)
    monkeypatch.setattr(here, "PASSES", 0)
    module, input = graft(kind()), torch.randn(2, 6, 7)
    plain = ungraft(copy.deepcopy(module))
    for factor in (1.0, 3.0, -2.0):
        here.FACTOR, here.PASSES = factor, 100
        expected, passes = plain(input), here.PASSES
        here.PASSES = 100
        torch.testing.assert_close(module(input), expected)
        assert here.PASSES == passes == 111
    assert set(calls_of(lambda: module(input))) == {FORWARD}


def test_a_function_that_a_file_gets_after_its_module_was_grafted(monkeypatch):
    module, input = graft(Bound()), torch.randn(2, 6, 7)
    monkeypatch.setattr(sys.modules[__name__], "causal_conv1d_fn", lambda x, *others, **named: 2 * x)
    torch.testing.assert_close(module(input), 2 * input)


def test_a_model_for_onnx_holds_pytorchs_convolution(monkeypatch):
    import torchgraft.nn.grafting.calls as calls

    module = graft(Mixer())
    monkeypatch.setattr(calls, "is_recorded_to_be_read", lambda: True)
    assert not calls_of(lambda: module(torch.randn(2, 7, 6)))


def test_packed_sequences():
    module, input = Bound(), torch.randn(2, 6, 7)
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2, 2]], dtype=torch.int32)
    expected = module(input, ids)
    torch.testing.assert_close(graft(module)(input, ids), expected)
    # transformers refuses them without the package.
    mixer, hidden = Mixer(), torch.randn(2, 7, 6)
    with pytest.raises(ValueError, match="cannot be kept apart"):
        mixer(hidden, seq_idx=ids)
    packed = graft(mixer)(hidden, seq_idx=ids)
    torch.testing.assert_close(packed[0, 3:], mixer(hidden[:1, 3:])[0])
    with pytest.raises(ValueError, match="cannot be kept apart"):
        mixer(hidden, cu_seqlens=torch.tensor([0, 7]))


LEFT = {
    "another activation": (lambda: Mixer(activation="gelu"), torch.float32),
    "weights of another dtype": (Mixer, torch.float64),
}


@pytest.mark.parametrize(("build", "dtype"), LEFT.values(), ids=LEFT.keys())
def test_calls_that_are_left_to_the_function(build, dtype):
    module = build()
    module.scale.to(dtype)
    input = torch.randn(2, 7, 6, dtype=dtype)
    expected = module(input)
    graft(module)
    torch.testing.assert_close(module(input), expected, rtol=0, atol=0)
    assert not calls_of(lambda: module(input))


class FunctionAsModule(nn.Module):
    """The module that the package kernels makes of a function, so that it can be given another forward pass."""

    kernel_layer_name = "causal_conv1d_fn"

    def forward(self, *args, **kwargs):
        return published.causal_conv1d_fn(*args, **kwargs)

    forward.__signature__ = inspect.Signature(
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *inspect.signature(causal_conv1d_fn).parameters.values(),
        ]
    )


function_as_module = FunctionAsModule()


class CallsAModule(nn.Module):
    def forward(self, x, weight):
        return function_as_module(x, weight, activation="silu")


def test_a_function_that_the_package_kernels_wraps():
    module, x, weight = CallsAModule(), torch.randn(2, 6, 5), torch.randn(6, 4)
    expected = module(x, weight)
    graft(module)
    assert calls_of(lambda: module(x, weight)) == [FORWARD]
    torch.testing.assert_close(module(x, weight), expected)


class States(nn.Module):
    """Calls with all that the package takes, by position."""

    def forward(self, x, weight, before, place=None):
        return causal_conv1d_fn(x, weight, None, None, before, True, place, "silu")


def test_states_go_in_and_out():
    x, weight, before = torch.randn(2, 6, 5), torch.randn(6, 4), torch.randn(2, 6, 3)
    module = States()
    expected = module(x, weight, before)
    graft(module)
    place = torch.empty(2, 6, 3)
    assert calls_of(lambda: module(x, weight, before)) == [FORWARD]
    torch.testing.assert_close(module(x, weight, before), expected)
    output, state = module(x, weight, before, place)
    assert state is place
    torch.testing.assert_close((output, place), expected)


def other_functions():
    """Functions of these names that mean something else, as those of vLLM do."""

    def causal_conv1d_fn(x, weight, bias, conv_states, query_start_loc, activation="silu"):
        return x

    def causal_conv1d(x, weight):
        return x

    return causal_conv1d_fn, causal_conv1d


of_other_arguments, of_any_package = other_functions()
not_there = None


class Other(nn.Module):
    def forward(self, x):
        return of_other_arguments(x, x, None, None, None)


class OtherName(nn.Module):
    def forward(self, x):
        return of_any_package(x, x)


class NotThere(nn.Module):
    def forward(self, x):
        return x if not_there is None else not_there(x)


class Own(nn.Module):
    def forward(self, x, weight):
        return torchgraft.causal_conv1d(x, weight)


def test_functions_of_other_arguments_are_left_and_named():
    report = graft_report(graft(nn.Sequential(Other(), OtherName(), NotThere(), Own())))
    assert report.grafted == report.graftable == ()
    assert report.left == {
        "0": "its causal_conv1d_fn takes other arguments than the published one",
        "1": "its causal_conv1d takes other arguments than the published one",
    }


def functions_of_fla():
    """Those of flash-linear-attention 0.6, whose kernels in Triton need a GPU."""

    def causal_conv1d(
        x,
        weight=None,
        bias=None,
        residual=None,
        initial_state=None,
        output_final_state=False,
        activation=None,
        backend="triton",
        cu_seqlens=None,
        cu_seqlens_cpu=None,
        chunk_indices=None,
        cp_context=None,
        **kwargs,
    ):
        raise RuntimeError("it needs a GPU")

    def causal_conv1d_update(x, cache, residual=None, weight=None, bias=None, activation=None):
        raise RuntimeError("it needs a GPU")

    return causal_conv1d, causal_conv1d_update


convolve_rows, step_rows = functions_of_fla()


class ShortConvolution(nn.Conv1d):
    """A layer like that of flash-linear-attention, whose own functions it calls."""

    def __init__(self, hidden_size, kernel_size, bias=False, activation="silu"):
        super().__init__(hidden_size, hidden_size, kernel_size, padding=kernel_size - 1, groups=hidden_size, bias=bias)
        self.activation = activation

    def forward(self, x, residual=None, cache=None, output_final_state=False, cu_seqlens=None, **kwargs):
        sequences = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
        if not torch.is_grad_enabled() and x.shape[0] * x.shape[1] == sequences:
            return self.step(x, residual, cache, output_final_state, sequences)
        return convolve_rows(
            x=x,
            weight=self.weight.squeeze(1),
            bias=self.bias,
            residual=residual,
            initial_state=cache,
            output_final_state=output_final_state,
            activation=self.activation,
            cu_seqlens=cu_seqlens,
            **kwargs,
        )

    def step(self, x, residual, cache, output_final_state, sequences):
        cache = x.new_zeros(sequences, x.shape[2], self.kernel_size[0]) if cache is None else cache
        y, cache = step_rows(x, cache, residual, self.weight.squeeze(1), self.bias, self.activation)
        return y, cache if output_final_state else None


def of_one_sequence(layer, inputs, before):
    """The output (length, channels) and the final state of a sequence, by the definition."""
    together = torch.cat([before, inputs.t()], 1)
    windows = (
        together[:, 1:].unfold(1, layer.kernel_size[0], 1) if len(inputs) else together.new_zeros(len(before), 0, 1)
    )
    output = (windows * layer.weight).sum(2) + (0 if layer.bias is None else layer.bias[:, None])
    return (output if layer.activation is None else functional.silu(output)).t(), together[:, -layer.kernel_size[0] :]


@pytest.mark.parametrize("offsets", [None, [0, 2, 2, 9, 10], [0, 10]], ids=str)
@pytest.mark.parametrize("arguments", [(5, 4), (5, 3, True, None), (3, 1)], ids=str)
def test_a_short_convolution(arguments, offsets):
    torch.manual_seed(0)
    layer = graft(ShortConvolution(*arguments).double())
    channels, width = arguments[:2]
    input = torch.randn(1 if offsets else 3, 10, channels, dtype=torch.float64, requires_grad=True)
    sequences = [input[0, begin:end] for begin, end in itertools.pairwise(offsets)] if offsets else list(input)
    before = torch.randn(len(sequences), channels, width, dtype=torch.float64, requires_grad=True)
    expected = [of_one_sequence(layer, each, state) for each, state in zip(sequences, before, strict=True)]
    outputs = torch.cat([output for output, _ in expected]).view(input.shape)
    states = torch.stack([state for _, state in expected])
    given = {"cu_seqlens": torch.tensor(offsets)} if offsets else {}

    output, state = layer(input, cache=before, output_final_state=True, **given)
    torch.testing.assert_close((output, state), (outputs, states))
    leaves = input, before, *layer.parameters()
    grads = [
        torch.autograd.grad(y.square().sum() + s.square().sum(), leaves)
        for y, s in ((output, state), (outputs, states))
    ]
    torch.testing.assert_close(grads[0], grads[1])

    first, none = layer(input, residual=input, **given)
    assert none is None
    zeros = torch.zeros_like(before)
    expected = [of_one_sequence(layer, each, state)[0] for each, state in zip(sequences, zeros, strict=True)]
    torch.testing.assert_close(first, torch.cat(expected).view(input.shape) + input)
    assert calls_of(lambda: layer(input, **given)) == [PACKED if offsets else FORWARD]


@pytest.mark.parametrize("packed", [False, True])
def test_a_step_of_a_short_convolution(packed):
    layer = graft(ShortConvolution(5, 4, bias=True))
    input, cache = torch.randn(3, 1, 5), torch.randn(3, 5, 4)
    expected = [of_one_sequence(layer, each, state) for each, state in zip(input, cache, strict=True)]
    given = {"cu_seqlens": torch.arange(4)} if packed else {}
    with torch.no_grad():
        x = input.transpose(0, 1) if packed else input
        output, state = layer(x, residual=x, cache=cache, output_final_state=True, **given)
    assert state is cache
    torch.testing.assert_close(output, torch.stack([each for each, _ in expected]).view_as(x) + x)
    torch.testing.assert_close(cache, torch.stack([each for _, each in expected]))
    assert calls_of(lambda: layer(x, **given)) == [STEP]


def test_what_stays_a_call_of_fla():
    layer = graft(ShortConvolution(5, 4))
    with pytest.raises(RuntimeError, match="it needs a GPU"):
        layer(torch.randn(1, 6, 5), cp_context=object())
    with pytest.raises(RuntimeError, match="it needs a GPU"):
        ungraft(layer)(torch.randn(1, 6, 5))
    assert graft_report(layer).graftable == ("",)
