"""Other tools treat a model in the same way before and after graft(model): no call that worked fails after it."""

import collections
import copy
import importlib
import io
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.ao import quantization
from torch.ao.quantization import quantize_fx
from torch.fx.experimental import optimization

from grafts import SamePadded, calls_of
from torchgraft import graft, graft_report, ungraft

NORMALIZATIONS = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def separable(kind, dense=None, **arguments):
    """A block of a depthwise-separable network: 1x1, depthwise, BatchNorm, ReLU."""
    pointwise = (dense or kind)(4, 8, 1)
    depthwise = kind(8, 8, 3, groups=8, **arguments)
    return nn.Sequential(pointwise, depthwise, NORMALIZATIONS[pointwise.weight.dim()](8), nn.ReLU())


BLOCKS = {
    "Conv1d": lambda: separable(nn.Conv1d, padding=1),
    "Conv2d": lambda: separable(nn.Conv2d, padding=1),
    "Conv3d": lambda: separable(nn.Conv3d, padding=1),
    "padding='same'": lambda: separable(nn.Conv2d, padding="same"),
    "ConvTranspose1d": lambda: separable(nn.ConvTranspose1d, padding=1),
    "ConvTranspose2d": lambda: separable(nn.ConvTranspose2d, padding=1),
    "ConvTranspose3d": lambda: separable(nn.ConvTranspose3d, padding=1),
    "SamePadded": lambda: separable(SamePadded, nn.Conv2d),
}
CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")
# In what order a model is grafted and given to a tool.
ORDERS = ("graft first", "tool first")
each_block = pytest.mark.parametrize("block", BLOCKS)
each_order = pytest.mark.parametrize("order", ORDERS)


def made(block):
    """A block in eval mode whose statistics are not those of a new one, and an input."""
    torch.manual_seed(0)
    model = BLOCKS[block]()
    input = torch.randn(2, 4, *[8, 7, 6][: model[0].weight.dim() - 2])
    with torch.no_grad():
        model(input)
    return model.eval(), input


def layers_of(model):
    """How many layers of each class there are, quantised ones apart."""
    return collections.Counter(
        f"{type(layer).__module__}.{type(layer).__qualname__}"
        for layer in model.modules()
        if not list(layer.children())
    )


def fused(model, input):
    model = quantization.fuse_modules(model, [["1", "2", "3"]])
    return layers_of(model), model(input)


def fused_by_fx(model, input):
    model = optimization.fuse(model)
    return layers_of(model), model(input)


def quantised(model, input):
    model = quantization.QuantWrapper(model).eval()
    model.qconfig = quantization.get_default_qconfig("x86")
    model = quantization.prepare(model)
    model(input)
    model = quantization.convert(model)
    return layers_of(model), model(input)


def trained_quantised(model, input):
    model = quantization.QuantWrapper(model).train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    model = quantization.prepare_qat(model)
    model(input).sum().backward()
    model = quantization.convert(model.eval())
    return layers_of(model), model(input)


def quantised_by_fx(model, input):
    model = quantize_fx.prepare_fx(model, quantization.get_default_qconfig_mapping("x86"), (input,))
    model(input)
    model = quantize_fx.convert_fx(model)
    return layers_of(model), model(input)


def trained_quantised_by_fx(model, input):
    mapping = quantization.get_default_qat_qconfig_mapping("x86")
    model = quantize_fx.prepare_qat_fx(model.train(), mapping, (input,))
    model(input).sum().backward()
    model = quantize_fx.convert_fx(model.eval())
    return layers_of(model), model(input)


def scripted(model, input):
    frozen = torch.jit.freeze(torch.jit.script(model))
    normalizations = str(frozen.graph).count("batch_norm")
    return normalizations, frozen(input), torch.jit.optimize_for_inference(frozen)(input)


def onnx_of(model, input):
    import onnx

    file = io.BytesIO()
    torch.onnx.export(model, (input,), file, dynamo=False)
    graph = onnx.load_from_string(file.getvalue()).graph
    return collections.Counter((node.domain, node.op_type) for node in graph.node), run_onnx(file.getvalue(), input)


def run_onnx(file, input):
    import onnxruntime

    session = onnxruntime.InferenceSession(file)
    (name,) = (each.name for each in session.get_inputs())
    return torch.from_numpy(session.run(None, {name: input.numpy()})[0])


def flops_by_pytorch(model, input):
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        model(input)
    return counter.get_total_flops()


def flops_by_fvcore(model, input):
    from fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis

    flops = FlopCountAnalysis(model, input).unsupported_ops_warnings(False)
    return flops.total(), flops.by_operator(), ActivationCountAnalysis(model, input).total()


def flops_by_ptflops(backend):
    def count(model, input):
        from ptflops import get_model_complexity_info

        sizes = tuple(input.shape[1:])
        return get_model_complexity_info(
            model, sizes, as_strings=False, print_per_layer_stat=False, backend=backend, ost=io.StringIO()
        )

    return count


def flops_by_replaced_functions(model, input):
    """Counts like the profilers of DeepSpeed and calflops: PyTorch's functions are replaced for a while."""
    names = [name for name in vars(F) if name in ("conv1d", "conv2d", "conv3d") or name.startswith("conv_transpose")]
    counts, before = collections.Counter(), {name: getattr(F, name) for name in names}

    def counted(name):
        def function(input, weight, *arguments, **named):
            counts[name] += input.numel() * weight[0].numel()
            return before[name](input, weight, *arguments, **named)

        return function

    try:
        for name in names:
            setattr(F, name, counted(name))
        output = model(input)
    finally:
        for name in names:
            setattr(F, name, before[name])
    assert sum(counts.values())
    return counts, output


# Each makes something of a model and of an input; and the blocks that it takes when they are not grafted.
READERS = {
    "fuse_modules": (fused, (*CONVOLUTIONS, "padding='same'")),
    "fx fuse": (fused_by_fx, (*CONVOLUTIONS, "padding='same'", "ConvTranspose2d")),
    "prepare and convert": (quantised, ("Conv2d", "Conv3d")),
    "prepare_qat and convert": (trained_quantised, ("Conv2d", "Conv3d")),
    "prepare_fx and convert_fx": (quantised_by_fx, (*CONVOLUTIONS, "ConvTranspose2d")),
    "prepare_qat_fx and convert_fx": (trained_quantised_by_fx, (*CONVOLUTIONS, "ConvTranspose2d")),
    "script, freeze and optimise": (scripted, [name for name in BLOCKS if name != "padding='same'"]),
    "onnx": (onnx_of, BLOCKS),
    "FlopCounterMode": (flops_by_pytorch, BLOCKS),
    "fvcore": (flops_by_fvcore, BLOCKS),
    "ptflops, hooks": (flops_by_ptflops("pytorch"), BLOCKS),
    "ptflops, operators": (flops_by_ptflops("aten"), BLOCKS),
    "replaced functions": (flops_by_replaced_functions, BLOCKS),
}


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",
    "ignore::torch.jit.TracerWarning",
)
@pytest.mark.parametrize(
    ("reader", "block"), [(name, block) for name, (_, blocks) in READERS.items() for block in blocks]
)
def test_what_reads_or_converts_a_model_finds_what_it_found_before(reader, block):
    read, _ = READERS[reader]
    model, input = made(block)
    expected = read(copy.deepcopy(model), input)
    grafted = graft(copy.deepcopy(model))
    torch.testing.assert_close(read(grafted, input), expected, rtol=1e-4, atol=1e-4)
    # Layers that a tool ungrafts are grafted again; and all are taken back.
    grafted = graft(grafted.eval())
    assert graft_report(grafted).grafted or reader.startswith("prepare")
    assert not calls_of(lambda: ungraft(grafted)(input))
    torch.testing.assert_close(read(ungraft(graft(model)), input), expected, rtol=1e-4, atol=1e-4)


def test_a_file_of_onnx_by_the_newer_exporter_holds_no_operator_of_ours():
    import onnx

    model = nn.Sequential(*(made(block)[0] for block in ("Conv2d", "ConvTranspose2d", "SamePadded")))
    model[1][0], model[2][0] = nn.ConvTranspose2d(8, 8, 1), nn.Conv2d(8, 8, 1)
    input = made("Conv2d")[1]
    expected = model(input)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(graft(model), (input,), dynamo=True, verbose=False)
    file = io.BytesIO()
    program.save(file)
    nodes = onnx.load_from_string(file.getvalue()).graph.node
    assert {node.domain for node in nodes} == {""}
    assert "BatchNormalization" not in {node.op_type for node in nodes}
    torch.testing.assert_close(run_onnx(file.getvalue(), input), expected)
    assert len(calls_of(lambda: model(input))) == 3


def in_order(order, model, tool):
    """Grafts a model and gives it to a tool; returns what the tool made of it."""
    if order == "graft first":
        return tool(graft(model))
    return graft(tool(model))


def expect_grafted(model, input, expected, layer="1"):
    """A layer computes on an operator, and as expected; ungrafted it computes as expected too. Leaves it grafted."""
    assert layer in graft_report(model).grafted
    assert calls_of(lambda: model(input))
    torch.testing.assert_close(model(input), expected)
    assert not calls_of(lambda: ungraft(model)(input))
    assert not graft_report(model).grafted
    torch.testing.assert_close(model(input), expected)
    assert layer in graft_report(graft(model)).grafted


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd layer with groups > 1", "ignore:Already unmerged")
@each_order
@pytest.mark.parametrize("block", ["Conv1d", "Conv2d", "padding='same'", "SamePadded"])
def test_lora_of_peft(block, order, tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model

    torch.manual_seed(0)
    base, input = made(block)
    untouched = copy.deepcopy(base)
    # It merges adapters of ungrouped layers only, so one of its own is put on the depthwise layer and left apart.
    settings = [LoraConfig(r=8, target_modules=[name], init_lora_weights=False) for name in ("0", "1")]

    def adapt(model):
        model = get_peft_model(model, settings[0], "pointwise")
        model.add_adapter("depthwise", settings[1])
        return model.eval()

    state = torch.get_rng_state()
    plain = adapt(copy.deepcopy(base))
    torch.set_rng_state(state)
    model = in_order(order, base, adapt)
    for name in ("depthwise", "pointwise"):
        plain.set_adapter(name)
        model.set_adapter(name)
        expected = plain(input)
        expect_grafted(model, input, expected, "base_model.model.1.base_layer")
        model(input).sum().backward()
        assert any(parameter.grad is not None for parameter in model.parameters())
    model.merge_adapter(["pointwise"])
    torch.testing.assert_close(model(input), expected)
    model.unmerge_adapter()
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(graft(untouched), tmp_path / "pointwise").eval()
    expect_grafted(loaded, input, expected, "base_model.model.1")
    expect_grafted(loaded.merge_and_unload(), input, expected)


def hooked(model, tmp_path):
    from accelerate.hooks import ModelHook, add_hook_to_module

    for layer in model:
        add_hook_to_module(layer, ModelHook())
        add_hook_to_module(layer, ModelHook(), append=True)
    return model


def offloaded(model, tmp_path):
    from accelerate import cpu_offload

    return cpu_offload(model, execution_device=torch.device("cpu"))


def dispatched(model, tmp_path):
    from accelerate import dispatch_model

    places = {"0": "cpu", "1": "disk", "2": "cpu", "3": "cpu"}
    return dispatch_model(model, places, main_device="cpu", offload_dir=tmp_path)


@each_order
@each_block
@pytest.mark.parametrize("hook", [hooked, offloaded, dispatched])
def test_hooks_of_accelerate(hook, block, order, tmp_path):
    from accelerate.hooks import remove_hook_from_module

    model, input = made(block)
    expected = model(input)
    model = in_order(order, model, lambda model: hook(model, tmp_path))
    expect_grafted(model, input, expected)
    remove_hook_from_module(model, recurse=True)
    if hook is hooked:  # The others leave parameters without memory.
        expect_grafted(model, input, expected)


@each_order
@each_block
def test_layerwise_casting_of_diffusers(block, order):
    from diffusers.hooks import apply_layerwise_casting

    def cast(model):
        apply_layerwise_casting(model, torch.float8_e4m3fn, torch.float32, skip_modules_pattern=())
        return model

    model, input = made(block)
    expected = cast(copy.deepcopy(model))(input)
    model = in_order(order, model, cast)
    assert model[1].weight.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(model(input), expected)
    if "Transpose" in block or block == "SamePadded":
        # Its method stands in front of the one that such a layer gets.
        assert len(calls_of(lambda: model(input))) == (order == "graft first")
        assert order == "graft first" or "graft the model first" in graft_report(model).left["1"]
        assert not calls_of(lambda: ungraft(model)(input))
        torch.testing.assert_close(model(input), expected)
    else:
        expect_grafted(model, input, expected)
    assert model[1].weight.dtype == torch.float8_e4m3fn


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize("block", [name for name in BLOCKS if "1d" not in name])
@pytest.mark.parametrize("sizes", [(2, 8, 8, 7, 6), (1, 8, 1, 4, 4), (4, 8, 4, 4, 4), (8, 4, 4, 4)])
def test_strides_of_a_channels_last_layer(block, sizes):
    (_, layer, *_), _ = made(block)
    layer = layer.to(memory_format=FORMATS[layer.weight.dim()])
    rank = layer.weight.dim() - 2
    input = torch.randn(sizes[: rank + (1 if len(sizes) == 4 else 2)], requires_grad=True)

    def strides():
        output = layer(input)
        return output.stride(), [each.stride() for each in torch.autograd.grad(output.sum(), list(layer.parameters()))]

    expected = strides()
    if sizes == (4, 8, 4, 4, 4):
        assert expected[0] == ((128, 1, 32, 8) if rank == 2 else (512, 1, 128, 32, 8))
    graft(layer)
    assert strides() == expected


@each_order
@pytest.mark.parametrize("block", [name for name in BLOCKS if "1d" not in name])
def test_distributed_training_of_a_channels_last_model_warns_of_no_strides(block, order, process_group):
    model, input = made(block)
    model = model.train().to(memory_format=FORMATS[input.dim()])
    for parameter in model[1].parameters():
        # What it compares, before it warns once in a process: the strides of a gradient, all of them.
        parameter.register_post_accumulate_grad_hook(lambda it: seen.append(it.grad.stride() == it.stride()))
    seen = []
    replicated = in_order(order, model, nn.parallel.DistributedDataParallel)
    for images in (input, input.to(memory_format=FORMATS[input.dim()])):
        model.zero_grad()
        gradients = torch.autograd.grad(model(images).square().sum(), list(model[1].parameters()))
        assert [each.stride() for each in gradients] == [each.stride() for each in model[1].parameters()]
        replicated(images).square().sum().backward()
    assert seen == [True] * 4


@each_order
@each_block
@pytest.mark.parametrize("layers", [(), (0, 1)], ids=["the whole", "each layer"])
def test_fully_shard(block, order, layers, process_group):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))

    def shard(model):
        for each in layers:
            fully_shard(model[each], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def train(model):
        steps = torch.optim.SGD(model.parameters(), 1e-3)
        losses = []
        for _ in range(2):
            steps.zero_grad()
            loss = model(input).square().mean()
            loss.backward()
            steps.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    model, input = made(block)
    expected = train(copy.deepcopy(model))
    model = in_order(order, model, shard)
    torch.testing.assert_close(train(model), expected)
    expect_grafted(model, input, model(input))


def synchronised(model, input):
    return nn.SyncBatchNorm.convert_sync_batchnorm(model).eval()


def averaged(model, input):
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    return average.eval()


def without_memory_for_a_while(model, input):
    state = copy.deepcopy(model.state_dict())
    model.to("meta")
    assert model(input.to("meta")).shape == (2, 8, *input.shape[2:])
    model.to_empty(device="cpu").load_state_dict(state)
    return model


def saved_and_loaded(model, input):
    from safetensors.torch import load, save

    loaded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    loaded.load_state_dict(load(save(model.state_dict())))
    return loaded


def prepared_by_accelerate(model, input):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return accelerator.unwrap_model(accelerator.prepare(model))


WRAPPERS = {
    "SyncBatchNorm": synchronised,
    "AveragedModel": averaged,
    "to_empty": without_memory_for_a_while,
    "safetensors": saved_and_loaded,
    "Accelerator.prepare": prepared_by_accelerate,
}


@each_order
@each_block
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_wraps_or_changes_a_model(wrapper, block, order):
    model, input = made(block)
    expected = model(input)
    model = in_order(order, model, lambda model: WRAPPERS[wrapper](model, input))
    expect_grafted(model, input, expected, "module.1" if wrapper == "AveragedModel" else "1")


@each_order
@pytest.mark.parametrize("block", ["Conv2d", "ConvTranspose1d", "SamePadded"])
def test_what_was_compiled_before_is_compiled_anew(block, order):
    ran = []

    def listen(module, inputs):
        names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]

        def run(*arguments):
            ran.extend(names)
            return module.forward(*arguments)

        return make_boxed_func(run)

    model, input = made(block)
    with torch.no_grad():
        expected = model(input)

        def compile(model):
            compiled = torch.compile(model, backend=aot_autograd(fw_compiler=listen), fullgraph=True)
            compiled(input)
            return compiled

        compiled = in_order(order, model, compile)
        for step, ours in ((graft, True), (ungraft, False), (graft, True)):
            step(compiled)
            ran.clear()
            torch.testing.assert_close(compiled(input), expected)
            assert ran
            assert any(name.startswith("torchgraft") for name in ran) == ours


@each_block
def test_calls_with_other_parameters(block):
    model, input = made(block)
    doubled = {name: 2 * parameter for name, parameter in model.named_parameters()}

    def results():
        def loss(parameters, each):
            return torch.func.functional_call(model, parameters, (each[None],)).square().sum()

        for_each = torch.func.vmap(torch.func.grad(loss), (None, 0))(doubled, input)
        return (
            torch.func.functional_call(model, doubled, (input,)),
            torch.nn.utils.stateless._functional_call(model, doubled, (input,)),
            for_each,
        )

    expected = results()
    graft(model)
    torch.testing.assert_close(results(), expected, rtol=1e-4, atol=1e-4)
    assert calls_of(lambda: torch.func.functional_call(model, doubled, (input,)))


class Rounded(torch.Tensor):
    """A weight as packages for quantisation make them: whole numbers and a step, and convolutions of its own."""

    @staticmethod
    def __new__(cls, numbers, step):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=step.dtype, device=numbers.device)

    def __init__(self, numbers, step):
        self.numbers, self.step = numbers, step

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].step)
        assert func is torch.ops.aten.convolution.default, func
        return func(*(each.numbers * each.step if isinstance(each, cls) else each for each in args))


@each_order
@each_block
def test_a_weight_that_computes_convolutions_itself(block, order):
    def round_weight(model):
        weight = model[1].weight.detach()
        step = weight.abs().max() / 127
        model[1].weight = nn.Parameter(Rounded((weight / step).round().to(torch.int8), step), requires_grad=False)
        return model

    model, input = made(block)
    expected = round_weight(copy.deepcopy(model))(input)
    model = in_order(order, model, round_weight)
    assert graft_report(model).left["1"] == "its weight is of the class Rounded, which computes convolutions itself"
    torch.testing.assert_close(model(input), expected, rtol=0, atol=0)
    torch.testing.assert_close(ungraft(model)(input), expected, rtol=0, atol=0)


@each_block
def test_an_input_of_a_subclass_that_only_has_another_name(block):
    class Image(torch.Tensor):
        pass

    model, input = made(block)
    expected = model(input.as_subclass(Image))
    found = graft(model)(input.as_subclass(Image))
    assert type(found) is type(expected) is Image
    torch.testing.assert_close(found.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    assert len(calls_of(lambda: model(input.as_subclass(Image)))) == 1


class Classified(nn.Module):
    """A model as the Trainer of transformers takes it."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, pixels, labels):
        logits = self.features(pixels).mean((2, 3))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def test_steps_of_the_trainer_of_transformers(tmp_path):
    from transformers import Trainer, TrainingArguments

    def trained(model):
        arguments = TrainingArguments(
            tmp_path, max_steps=2, report_to=[], use_cpu=True, save_steps=1, disable_tqdm=True, optim="sgd"
        )
        random = torch.Generator().manual_seed(1)
        data = [{"pixels": torch.randn(4, 8, 7, generator=random), "labels": label} for label in range(4)]
        Trainer(model, arguments, train_dataset=data).train()
        return model

    expected = trained(Classified(made("Conv2d")[0]))
    model = trained(graft(Classified(made("Conv2d")[0])))
    assert graft_report(model).grafted == ("features.1",)
    torch.testing.assert_close(model.state_dict(), expected.state_dict())


class TestLargePackages:
    """Tools that are not installed for each run of the tests: `pip install -r requirements/frictions.txt`."""

    pytestmark = pytest.mark.slow

    def package(self, name):
        try:
            return importlib.import_module(name)
        except (ImportError, RuntimeError) as error:  # torchvision is made for one build of PyTorch
            pytest.skip(f"pip install -r requirements/frictions.txt: {error}")

    @pytest.mark.filterwarnings("ignore")
    @each_block
    def test_thop(self, block):
        thop = self.package("thop")
        model, input = made(block)
        expected = thop.profile(copy.deepcopy(model), (input,), verbose=False)
        assert thop.profile(graft(model), (input,), verbose=False) == expected
        assert graft_report(model).grafted

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("block", ["Conv1d", "Conv2d", "Conv3d", "SamePadded"])
    def test_quantisation_of_an_exported_program(self, block):
        """An exported program of a grafted model has our operators, which no quantiser knows: ungraft before."""
        self.package("torchao")
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
            X86InductorQuantizer,
            get_default_x86_inductor_quantization_config,
        )

        def quantised(model):
            quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
            prepared = prepare_pt2e(torch.export.export(model, (input,)).module(), quantizer)
            prepared(input)
            model = convert_pt2e(prepared)
            nodes = collections.Counter(str(node.target) for node in model.graph.nodes if node.op == "call_function")
            return nodes, model(input)

        model, input = made(block)
        expected = quantised(copy.deepcopy(model))
        torch.testing.assert_close(quantised(ungraft(graft(model))), expected)

    @pytest.mark.filterwarnings("ignore")
    @each_order
    def test_weights_of_torchao(self, order):
        self.package("torchao")
        from torchao.quantization import IntxUnpackedToInt8Tensor

        def quantise(model):
            for layer in model[:2]:
                weight = layer.weight.detach()
                rounded = IntxUnpackedToInt8Tensor.from_hp(weight, (1, *weight.shape[1:]), torch.int8)
                layer.weight = nn.Parameter(rounded, requires_grad=False)
            return model

        model, input = made("Conv2d")
        expected = quantise(copy.deepcopy(model))(input)
        model = in_order(order, model, quantise)
        assert "computes convolutions itself" in graft_report(model).left["1"]
        torch.testing.assert_close(model(input), expected)

    @pytest.mark.parametrize("name", ["repvit_m0_9", "fastvit_t8"])
    def test_timm_joins_the_branches_of_a_block(self, name):
        timm = self.package("timm")

        def joined(model):
            return timm.utils.reparameterize_model(model)

        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=3).eval()
        images = torch.randn(1, 3, 64, 64)
        expected = joined(copy.deepcopy(model))
        torch.testing.assert_close(joined(graft(model))(images), expected(images), rtol=1e-3, atol=1e-4)
        # Joining makes new layers: it comes first, where they are to be grafted.
        before = expected(images)
        assert graft_report(graft(expected)).grafted
        torch.testing.assert_close(expected(images), before, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(ungraft(expected)(images), before, rtol=0, atol=0)

    @each_order
    def test_timm_averages_and_synchronises(self, order):
        timm = self.package("timm")
        torch.manual_seed(0)
        model = timm.create_model("tf_efficientnet_b0", num_classes=3).eval()
        images = torch.randn(2, 3, 64, 64)
        expected = model(images)

        def wrap(model):
            model = timm.layers.convert_sync_batchnorm(model)
            average = timm.utils.ModelEmaV3(model.eval())
            average.update(model)
            return average.module

        average = in_order(order, model, wrap)
        report = graft_report(average)
        assert len(report.grafted) == len(calls_of(lambda: average(images))) == 16
        assert not report.graftable
        torch.testing.assert_close(average(images), expected, rtol=1e-3, atol=1e-4)
        assert not calls_of(lambda: ungraft(average)(images))
