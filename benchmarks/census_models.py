"""Public models by library: their names, how each is built without weights, and inputs for a forward pass.

Everything is built on the meta device, whose tensors have shapes and no memory, and nothing is downloaded. A library is
imported only by the functions that need it.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

# The arguments and the keyword arguments of a forward pass.
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Library:
    """A library of models.

    Attributes:
        package: the name by which pip knows it.
        names: lists its models.
        build: builds one of them, with random weights.
        inputs: gives inputs for a model, the likeliest first: one of them should do.
    """

    package: str
    names: Callable[[], list[str]]
    build: Callable[[str], torch.nn.Module]
    inputs: Callable[[str, torch.nn.Module], Iterable[Inputs]]


def floats(*shape: int) -> torch.Tensor:
    """Returns a tensor of floats without memory."""
    return torch.empty(shape, device="meta")


def tokens(*shape: int) -> torch.Tensor:
    """Returns a tensor of token numbers without memory."""
    return torch.empty(shape, dtype=torch.long, device="meta")


def declare_torchvision_operators() -> None:
    """Declares the operators without which `import torchvision` raises.

    Wheels of torchvision for CUDA do not load beside a PyTorch for CPUs, and torchvision then describes the shapes of
    two operators that nobody has declared. No model is run for real here, so a declaration is enough.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        ctypes.CDLL(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _timm_names() -> list[str]:
    import timm

    return timm.list_models()


def _timm_build(name: str) -> torch.nn.Module:
    import timm

    return timm.create_model(name)


def _timm_inputs(name: str, model: Any) -> Iterator[Inputs]:
    yield (floats(1, *model.pretrained_cfg["input_size"]),), {}
    if size := model.pretrained_cfg.get("min_input_size"):
        yield (floats(1, *size),), {}


@cache
def _transformers_classes() -> dict[str, str]:
    """The class of each type of model: the bare one if there is one, else the first that an automatic class knows."""
    from transformers.models.auto import modeling_auto

    tables = sorted(name for name in vars(modeling_auto) if name.endswith("MAPPING_NAMES") and name.startswith("MODEL"))
    classes: dict[str, str] = {}
    for table in ("MODEL_MAPPING_NAMES", *tables):
        for kind, name in vars(modeling_auto)[table].items():
            classes.setdefault(kind, name if isinstance(name, str) else name[0])
    return classes


def _transformers_names() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def _transformers_build(name: str) -> torch.nn.Module:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    classes = _transformers_classes()
    if name not in classes:
        raise LookupError("no automatic class of transformers has a model of this type")
    config = CONFIG_MAPPING[name]()
    if hasattr(config, "use_pretrained_backbone"):
        config.use_pretrained_backbone = False
    if hasattr(config, "use_mamba_kernels"):
        # With them Jamba and Zamba refuse to run where packages for a GPU are not installed.
        config.use_mamba_kernels = False
    return getattr(transformers, classes[name])(config)


def _first(config: Any, names: tuple[str, ...], otherwise: Any) -> Any:
    """The value of the first attribute that a configuration, or the part of it for images or sounds, has."""
    parts = [config, *(getattr(config, f"{part}_config", None) for part in ("vision", "audio", "encoder", "backbone"))]
    for part in parts:
        for name in names:
            if (value := getattr(part, name, None)) is not None:
                return value
    return otherwise


def _transformers_inputs(name: str, model: Any) -> Iterator[Inputs]:
    config, main = model.config, model.main_input_name
    main = main if isinstance(main, str) else main[0]
    size = _first(config, ("image_size", "crop_size", "input_size"), 224)
    size = size if isinstance(size, (list, tuple)) else (size, size)
    channels, frames = _first(config, ("num_channels",), 3), _first(config, ("num_frames", "frames_per_clip"), 8)
    bands = _first(config, ("num_mel_bins", "input_feat_per_channel", "input_channels"), 80)
    length = 2 * _first(config, ("max_source_positions",), 256)
    image, text = floats(1, channels, *size[-2:]), tokens(1, 16)
    audio_channels = _first(config, ("audio_channels",), 1)
    by_name: dict[str, list[torch.Tensor]] = {
        "input_ids": [text],
        "pixel_values": [
            image,
            floats(1, channels, 224, 224),
            floats(1, frames, channels, *size[-2:]),
            floats(1, 2, channels, *size[-2:]),
        ],
        "pixel_values_videos": [floats(1, frames, channels, *size[-2:])],
        "input_values": [
            floats(1, 16000),
            floats(1, audio_channels, 16000),
            floats(1, _first(config, ("max_length",), 1024), bands),
        ],
        "input_features": [floats(1, length, bands), floats(1, bands, length)],
        "inputs": [tokens(1, 2048), floats(1, 2048, _first(config, ("d_model",), 768))],
    }
    decoder = {"decoder_input_ids": text}
    for value in by_name.get(main, []):
        yield (), {main: value}
        yield (), {main: value, **decoder}
    if width := getattr(config, "feature_projection_input_dim", None):
        for more in ({}, decoder):
            yield (), {"input_features": floats(1, 256, width), **more}
    if main == "audio_mel":
        width = _first(config, ("input_feat_size",), 128)
        yield (), {main: floats(1, 512, width), "audio_mel_mask": floats(1, 512).bool()}
    yield (), {"pixel_values": image, "task_inputs": tokens(1, 77)}
    # Models of images and text, or of sounds and text.
    yield (), {"input_ids": text, "pixel_values": image}
    yield (), {"input_ids": text}
    yield (), {"input_ids": text, "input_features": floats(1, bands, length)}
    yield (), {"input_ids": text, "input_values": floats(1, 16000)}
    yield (), {key: value.to("meta") for key, value in model.dummy_inputs.items()}


def _torchvision_names() -> list[str]:
    import torchvision

    # The quantized ones have the layers of those that are not.
    return torchvision.models.list_models(exclude="quantized_*")


def _torchvision_build(name: str) -> torch.nn.Module:
    import torchvision

    builder = torchvision.models.get_model_builder(name)
    backbone = {"weights_backbone": None} if "weights_backbone" in builder.__annotations__ else {}
    return builder(weights=None, **backbone)


def _torchvision_inputs(name: str, model: torch.nn.Module) -> Iterator[Inputs]:
    if "raft" in name:
        yield (floats(1, 3, 224, 224), floats(1, 3, 224, 224)), {}
    elif "rcnn" in name or "ssd" in name or "retinanet" in name or "fcos" in name:
        yield ([floats(3, 320, 320)],), {}
    else:
        yield (floats(1, 3, 224, 224),), {}
        yield (floats(1, 3, 16, 224, 224),), {}


# Encoders that stand for all in every architecture but Unet.
_SMP_ENCODERS = ("resnet34", "mobilenet_v2", "efficientnet-b0", "mit_b0", "mobileone_s0", "tu-convnext_tiny")


def _smp_names() -> list[str]:
    import segmentation_models_pytorch as smp

    names = [f"Unet {encoder}" for encoder in (*smp.encoders.get_encoder_names(), _SMP_ENCODERS[-1])]
    classes = sorted(each.__name__ for each in smp.MODEL_ARCHITECTURES_MAPPING.values())
    names += [f"{each} {encoder}" for each in classes if each not in ("Unet", "DPT") for encoder in _SMP_ENCODERS]
    return [*names, "DPT tu-vit_base_patch16_224"]


def _smp_build(name: str) -> torch.nn.Module:
    import segmentation_models_pytorch as smp

    architecture, encoder = name.split()
    return getattr(smp, architecture)(encoder, encoder_weights=None)


def _smp_inputs(name: str, model: torch.nn.Module) -> Iterator[Inputs]:
    yield (floats(1, 3, 224, 224),), {}


_MONAI: dict[str, dict[str, Any]] = {
    **{f"MedNeXt{size}": {"in_channels": 1, "out_channels": 2, "spatial_dims": 3} for size in "SBML"},
    **{f"EfficientNetBN b{each}": {"pretrained": False, "spatial_dims": 3, "in_channels": 1} for each in range(8)},
    "UNet": {
        "spatial_dims": 3,
        "in_channels": 1,
        "out_channels": 2,
        "channels": (16, 32, 64, 128),
        "strides": (2, 2, 2),
    },
    "BasicUNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "SegResNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "SwinUNETR": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "UNETR": {"in_channels": 1, "out_channels": 2, "img_size": (64, 64, 64)},
    "VNet": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
    "DenseNet121": {"spatial_dims": 3, "in_channels": 1, "out_channels": 2},
}


def _monai_build(name: str) -> torch.nn.Module:
    from monai.networks import nets

    kind, *variant = name.split()
    return getattr(nets, kind)(*(f"efficientnet-{each}" for each in variant), **_MONAI[name])


def _monai_inputs(name: str, model: torch.nn.Module) -> Iterator[Inputs]:
    yield (floats(1, 1, 64, 64, 64),), {}


def _pytorchvideo_names() -> list[str]:
    from pytorchvideo.models import hub

    return sorted(
        name
        for name, value in vars(hub).items()
        if callable(value) and getattr(value, "__module__", "").startswith("pytorchvideo.models.hub")
    )


def _pytorchvideo_build(name: str) -> torch.nn.Module:
    from pytorchvideo.models import hub

    return getattr(hub, name)(pretrained=False)


def _pytorchvideo_inputs(name: str, model: torch.nn.Module) -> Iterator[Inputs]:
    clips = {"xs": (4, 160), "_s": (13, 160), "_m": (16, 224), "_l": (16, 312)}
    frames, size = clips[name[-2:]] if "x3d" in name else (32 if "32x3" in name else 16, 224)
    clip = floats(1, 3, frames, size, size)
    yield (clip,), {}
    yield (floats(1, 3, 32, 224, 224),), {}
    yield (floats(1, 3, 8, 224, 224),), {}
    yield (floats(1, 3, 224, 224),), {}
    # The slow path gets every fourth frame.
    for fast in (32, 64):
        yield ([floats(1, 3, fast // 4, 224, 224), floats(1, 3, fast, 224, 224)],), {}
    boxes = floats(1, 5)
    yield (floats(1, 3, 4, 224, 224), boxes), {}
    yield ([floats(1, 3, 8, 224, 224), floats(1, 3, 32, 224, 224)], boxes), {}


LIBRARIES = {
    "timm": Library("timm", _timm_names, _timm_build, _timm_inputs),
    "transformers": Library("transformers", _transformers_names, _transformers_build, _transformers_inputs),
    "torchvision": Library("torchvision", _torchvision_names, _torchvision_build, _torchvision_inputs),
    "smp": Library("segmentation-models-pytorch", _smp_names, _smp_build, _smp_inputs),
    "monai": Library("monai", lambda: list(_MONAI), _monai_build, _monai_inputs),
    "pytorchvideo": Library("pytorchvideo", _pytorchvideo_names, _pytorchvideo_build, _pytorchvideo_inputs),
}
