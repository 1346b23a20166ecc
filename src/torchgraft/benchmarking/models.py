"""End to end: a training step of whole models, before and after `graft(model)`.

A step is what a person waits for, so it is timed by the host's clock, launches included; the two models have the same
weights and the same input, and the first step of both must agree.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchgraft.benchmarking.explaining import kernels_of
from torchgraft.benchmarking.provenance import provenance_of_models
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.rows import RivalResult, Row
from torchgraft.benchmarking.suite import LAYOUTS, Planned, Wanted, expect_known
from torchgraft.benchmarking.timing import Stopwatch, ratio_of
from torchgraft.nn.grafting import graft, graft_report

SUITE = "training step"
_CLASSES = 1000
_RIVAL = "pytorch"


@dataclass(frozen=True)
class Model:
    """A model that is trained for a few steps.

    Attributes:
        name: as a person names it.
        package: what it comes from.
        device: the kind of device at whose size it is.
        batch: images, volumes or sequences a step.
        shape: of the input, without the batch.
        make: a new one, with random weights; what it returns is, or holds, `logits`.
        compiled: whether it is timed under torch.compile too.
        vocabulary: how many tokens there are, where the input is tokens; 0 where it is numbers.
    """

    name: str
    package: str
    device: str
    batch: int
    shape: tuple[int, ...]
    make: Callable[[], nn.Module]
    compiled: bool = False
    vocabulary: int = 0

    @property
    def size(self) -> str:
        """The sizes of the input in words: 8,3,224x224."""
        channels, pixels = self.shape[:1], self.shape[1:]
        if len(pixels) < 2:
            return ",".join(map(str, (self.batch, *self.shape)))
        return ",".join(map(str, (self.batch, *channels, "x".join(map(str, pixels)))))

    def make_input(self, device: torch.device) -> Tensor:
        """Random input of a step."""
        shape = self.batch, *self.shape
        if self.vocabulary:
            return torch.randint(self.vocabulary, shape, device=device)
        return torch.randn(shape, device=device)


# Of an input with so many dimensions.
_MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _from_timm(name: str, *, compiled: bool = False) -> Model:
    def make() -> nn.Module:
        model: nn.Module = importlib.import_module("timm").create_model(name, num_classes=_CLASSES)
        return model

    return Model(name, "timm", "cuda", 128, (3, 224, 224), make, compiled)


def _from_transformers(
    name: str, family: str, *, device: str = "cpu", batch: int = 8, size: int = 64, **configuration: Any
) -> Model:
    def make() -> nn.Module:
        package = importlib.import_module("transformers")
        configured = getattr(package, f"{family}Config")(num_labels=_CLASSES, image_size=size, **configuration)
        model: nn.Module = getattr(package, f"{family}ForImageClassification")(configured)
        return model

    return Model(name, "transformers", device, batch, (3, size, size), make)


def _language_model(name: str, family: str, **configuration: Any) -> Model:
    vocabulary = 50280

    def make() -> nn.Module:
        package = importlib.import_module("transformers")
        configured = getattr(package, f"{family}Config")(vocab_size=vocabulary, use_cache=False, **configuration)
        model: nn.Module = getattr(package, f"{family}ForCausalLM")(configured)
        return model

    return Model(name, "transformers", "cuda", 4, (2048,), make, vocabulary=vocabulary)


def _mednext() -> nn.Module:
    networks = importlib.import_module("monai.networks.nets")
    model: nn.Module = networks.MedNeXtSmall(in_channels=1, out_channels=2, spatial_dims=3)
    return model


def _x3d() -> nn.Module:
    models = importlib.import_module("pytorchvideo.models.x3d")
    model: nn.Module = models.create_x3d(
        input_clip_length=16, input_crop_size=224, dropout_rate=0.0, model_num_class=_CLASSES, head_activation=None
    )
    return model


class _Conformer(nn.Module):
    """A Conformer of torchaudio, for sequences of one length."""

    def __init__(self) -> None:
        super().__init__()
        models = importlib.import_module("torchaudio.models")
        # Features, heads, features between two products, layers, and how wide the convolutions are.
        self.layers = models.Conformer(512, 8, 2048, 8, 31, dropout=0.0)

    def forward(self, input: Tensor) -> Tensor:
        """Transforms sequences (N, L, features), none of which has padding."""
        lengths = torch.full((input.size(0),), input.size(1), device=input.device)
        output: Tensor = self.layers(input, lengths)[0]
        return output


# Without dropout: two runs of a step must agree.
MODELS = {
    model.name: model
    for model in (
        _from_timm("convnext_tiny", compiled=True),
        _from_timm("mobilenetv3_large_100", compiled=True),
        _from_timm("efficientnet_b0", compiled=True),
        _from_timm("repvit_m1"),
        _from_timm("tf_efficientnetv2_b0"),
        _from_timm("mobilenetv2_100"),
        _from_timm("mobilenetv4_conv_small"),
        _from_transformers(
            "segformer_b0",
            "Segformer",
            device="cuda",
            batch=128,
            size=224,
            hidden_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
            drop_path_rate=0.0,
        ),
        Model("mednext_s", "monai", "cuda", 2, (1, 96, 96, 96), _mednext),
        Model("x3d_m", "pytorchvideo", "cuda", 8, (3, 16, 224, 224), _x3d),
        Model("conformer_large", "torchaudio", "cuda", 16, (1000, 512), _Conformer),
        _language_model("mamba2_130m", "Mamba2", hidden_size=768, num_hidden_layers=24, num_heads=24, head_dim=64),
        _from_transformers("convnext_small_images", "ConvNext", hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 4, 2]),
        _from_transformers("mobilenet_v2_half", "MobileNetV2", depth_multiplier=0.5, classifier_dropout_prob=0.0),
        _from_transformers(
            "efficientnet_half",
            "EfficientNet",
            width_coefficient=0.5,
            depth_coefficient=0.5,
            hidden_dim=640,
            dropout_rate=0.0,
            drop_connect_rate=0.0,
        ),
    )
}


def plan_models(names: Sequence[str], wanted: Wanted) -> list[Planned]:
    """The rows of models, of the dtypes and layouts that are wanted.

    Args:
        names: of which models; none means all that belong to the kind of device.
        wanted: the device, dtypes and layouts.

    Raises:
        LookupError: there is no such model, or no such layout.
        ModuleNotFoundError: the package is missing that a model comes from.
    """
    expect_known("model", names, list(MODELS))
    expect_known("layout", wanted.layouts, LAYOUTS)
    models = [MODELS[name] for name in names] or [
        model for model in MODELS.values() if model.device == wanted.device.type
    ]
    for package in dict.fromkeys(model.package for model in models):
        importlib.import_module(package)
    return [_plan_one(each) for model in models for each in _variants(model, wanted)]


@dataclass(frozen=True)
class Variant:
    """A way to train a model: a dtype, of autocast where it is not float32; a layout; compiled or not."""

    model: Model
    dtype: torch.dtype
    layout: str
    compiled: bool
    device: torch.device

    @property
    def sample(self) -> str:
        """The name of the row, beside dtype and layout."""
        return f"{self.model.size} {'compiled' if self.compiled else 'eager'}"


def _variants(model: Model, wanted: Wanted) -> Iterator[Variant]:
    for compiled in (False, True) if model.compiled else (False,):
        for dtype in wanted.asked_dtypes:
            for layout in wanted.layouts:
                if layout == "channels_last" and 1 + len(model.shape) not in _MEMORY_FORMATS:
                    continue
                yield Variant(model, dtype, layout, compiled, wanted.device)


def _plan_one(variant: Variant) -> Planned:
    dtype = str(variant.dtype).removeprefix("torch.")
    return Planned(
        variant.model.name,
        SUITE,
        variant.sample,
        variant.dtype,
        (variant.model.name, SUITE, variant.sample, dtype, variant.layout, "training"),
        f"{variant.model.name}, {variant.sample}, {dtype}, {variant.layout}",
        not variant.compiled and variant.layout == "channels_last",
        partial(measure_model, variant),
        lambda problem, roofs: _row(variant, problem=problem),
    )


class Training:
    """A model and all that a step of its training takes; called, it makes one and returns the loss."""

    def __init__(self, variant: Variant, model: nn.Module, input: Tensor, labels: Tensor) -> None:
        self.model = model
        self._run = torch.compile(model) if variant.compiled else model
        # Small: the time of a step does not depend on it, and weights that became NaN would.
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
        self._input, self._labels = input, labels
        self._variant = variant

    def __call__(self) -> Tensor:
        """Forward, backward, new weights."""
        self._optimizer.zero_grad()
        lower = self._variant.dtype is not torch.float32
        with torch.autocast(self._variant.device.type, self._variant.dtype, enabled=lower):
            output = self._run(self._input)
            scores = getattr(output, "logits", output)
            if scores.dim() == 2:
                loss = nn.functional.cross_entropy(scores, self._labels)
            else:  # For the time of a step any other function does.
                loss = scores.float().square().mean()
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def first_step(self) -> tuple[float, float]:
        """The loss of one step, and the norm of all gradients together."""
        loss = self()
        norms = [each.grad.double().norm() for each in self.model.parameters() if each.grad is not None]
        return float(loss), float(torch.stack(norms).norm())


def measure_model(variant: Variant, stopwatch: Stopwatch, roofs: Roofs) -> Row:
    """Times a step of training, as PyTorch has the model and grafted, in turn."""
    torch.manual_seed(0)
    model = variant.model.make().to(variant.device).train()
    input = variant.model.make_input(variant.device)
    if variant.layout == "channels_last":
        layout = _MEMORY_FORMATS[input.dim()]
        model, input = model.to(memory_format=layout), input.contiguous(memory_format=layout)  # type: ignore[call-overload]
    labels = torch.randint(_CLASSES, (variant.model.batch,), device=variant.device)
    grafted = graft(copy.deepcopy(model))
    ours = Training(variant, grafted, input, labels)
    theirs = Training(variant, model, input, labels)
    try:
        found, expected = ours.first_step(), theirs.first_step()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return _row(variant, problem=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}")
    if problem := _why_they_differ(found, expected, variant.dtype):
        return _row(variant, problem=problem)
    timings = stopwatch.time_by_clock({"ours": ours, "again": ours, _RIVAL: theirs})
    row = timings["ours"]
    report = graft_report(grafted)
    return _row(
        variant,
        time=row.time,
        noise=ratio_of(timings["again"].rounds, row.rounds),
        others=row.others,
        rivals={_RIVAL: RivalResult(timings[_RIVAL].time, ratio_of(timings[_RIVAL].rounds, row.rounds), "")},
        fallbacks=() if report.grafted else ("no layer was grafted: see graft_report(model)",),
        provenance=provenance_of_models(variant.device.type, kernels_of(ours, variant.device)),
    )


def _why_they_differ(found: tuple[float, float], expected: tuple[float, float], dtype: torch.dtype) -> str:
    # Half of the digits that the dtype has: rounding grows from layer to layer.
    tolerance = torch.finfo(dtype).eps ** 0.5
    for what, one, other in zip(("the loss", "the norm of the gradients"), found, expected, strict=True):
        if not abs(one - other) <= tolerance * abs(other):
            return f"{what} of the first step is {one:.6g} grafted, and {other:.6g} before"
    return ""


def _row(variant: Variant, **found: Any) -> Row:
    figures = {"time": None, "noise": None, **found}
    return Row(
        operator=variant.model.name,
        suite=SUITE,
        sample=variant.sample,
        dtype=str(variant.dtype).removeprefix("torch."),
        layout=variant.layout,
        direction="training",
        warm=None,
        host=None,
        moved=0,
        operations=0,
        floor=float("nan"),
        bound="",
        **figures,
    )
