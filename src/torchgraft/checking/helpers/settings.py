"""The settings of a process that all its code shares, and a scope after which an operator must have left them alone."""

import ctypes
import math
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.checking.tensors.compare import Mismatch

_SMALLEST = math.ulp(0.0)
# PyTorch gives no thread of its pool fewer elements than this, if others can have them (at::internal::GRAIN_SIZE).
_ELEMENTS_OF_A_THREAD = 32768
_NEAREST = "to nearest"


@dataclass(frozen=True)
class _Setting:
    """A setting of the process.

    Attributes:
        name: for a person.
        read: returns its value.
        write: sets its value; None if nothing in Python sets it.
        switched: returns another value to try; None if only the present one is tried.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any] | None = None
    switched: Callable[[Any], Any] | None = None


def _flag(name: str, holder: Any, attribute: str) -> _Setting:
    """A setting that is true or false, kept in an attribute."""
    return _Setting(name, lambda: getattr(holder, attribute), lambda value: setattr(holder, attribute, value), _negated)


def _negated(value: bool) -> bool:
    return not value


def _flushes_subnormals() -> bool:
    return _SMALLEST * 1.0 == 0.0


def _flush_subnormals(flush: bool) -> None:
    """Sets the mode of this thread alone.

    A thread has for ever the mode of the one that starts it. PyTorch's pool is therefore started before: a check after
    this one would find numbers flushed by some threads and not by others.
    """
    if flush:
        torch.ones(_ELEMENTS_OF_A_THREAD * torch.get_num_threads()).neg_()
    torch.set_flush_denormal(flush)


@contextmanager
def pytorch_in_time(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """A scope in which PyTorch computes float16 on a CPU without oneDNN.

    On processors with float16 arithmetic the oneDNN of PyTorch 2.13 takes minutes for a convolution of 256 taps.
    """
    backend: Any = torch.backends.mkldnn
    before = backend.enabled
    try:
        if device.type == "cpu" and dtype == torch.float16:
            backend.enabled = False
        yield
    finally:
        backend.enabled = before


def _rounding_mode() -> str:
    # What a sum that lies between two numbers becomes tells the four modes of a processor apart.
    above, below = sys.float_info.epsilon / 4, -sys.float_info.epsilon / 4
    up, down = 1.0 + above > 1.0, -1.0 + below < -1.0
    if up or down:
        return "away from zero" if up and down else "up" if up else "down"
    return _NEAREST if 1.0 + below == 1.0 else "toward zero"


def _round_to_nearest(mode: str) -> None:
    # C's FE_TONEAREST is 0 on x86 and on ARM.
    if mode == _NEAREST and hasattr(ctypes.CDLL(None), "fesetround"):
        ctypes.CDLL(None).fesetround(0)


def _settings() -> tuple[_Setting, ...]:
    cudnn: Any = torch.backends.cudnn
    products: Any = torch.backends.cuda.matmul
    mkldnn: Any = torch.backends.mkldnn
    found = [
        _Setting("the number of threads", torch.get_num_threads, torch.set_num_threads, lambda count: count % 3 + 1),
        _Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
        _Setting("the default device", torch.get_default_device, torch.set_default_device),
        _Setting("whether gradients are recorded", torch.is_grad_enabled, torch.set_grad_enabled),
        _Setting("whether subnormal numbers count as zero", _flushes_subnormals, _flush_subnormals, _negated),
        _Setting("the rounding of floating-point numbers", _rounding_mode, _round_to_nearest, lambda mode: _NEAREST),
        _Setting(
            "torch.use_deterministic_algorithms",
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
            # Not 2, under which PyTorch's own kernels may raise an error; 1 is a warning.
            lambda mode: 0 if mode else 1,
        ),
        _Setting("anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        _Setting(
            "autocast on the CPU",
            lambda: torch.is_autocast_enabled("cpu"),
            lambda value: torch.set_autocast_enabled("cpu", value),
        ),
        _flag("torch.backends.cudnn.enabled", cudnn, "enabled"),
        _flag("torch.backends.cudnn.benchmark", cudnn, "benchmark"),
        _flag("torch.backends.cudnn.deterministic", cudnn, "deterministic"),
        _flag("torch.backends.mkldnn.enabled", mkldnn, "enabled"),
        _Setting("how matrix products reduce float16", lambda: str(products.allow_fp16_reduced_precision_reduction)),
        _Setting("how matrix products reduce bfloat16", lambda: str(products.allow_bf16_reduced_precision_reduction)),
    ]
    for name, holder in (
        ("torch.backends.cuda.matmul", products),
        ("torch.backends.cudnn.conv", cudnn.conv),
        ("torch.backends.cudnn.rnn", cudnn.rnn),
        ("torch.backends.mkldnn.matmul", mkldnn.matmul),
        ("torch.backends.mkldnn.conv", mkldnn.conv),
    ):
        # They have no other value to try: the check has set them, for exact products.
        found.append(
            _Setting(
                f"{name}.fp32_precision",
                lambda holder=holder: holder.fp32_precision,  # type: ignore[misc]
                lambda value, holder=holder: setattr(holder, "fp32_precision", value),  # type: ignore[misc]
            )
        )
    if torch.cuda.is_initialized():
        found += [
            _Setting("the current CUDA device", torch.cuda.current_device, torch.cuda.set_device),
            _Setting("the current CUDA stream", torch.cuda.current_stream, torch.cuda.set_stream),
        ]
    return tuple(found)


@dataclass(frozen=True)
class _Generator:
    """A random generator that all code of the process draws from.

    Attributes:
        name: for a person.
        read: returns its state.
        write: sets its state.
        draw: draws a number.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    draw: Callable[[], Any]


def _generators() -> list[_Generator]:
    found = [
        _Generator("PyTorch's random generator", torch.get_rng_state, torch.set_rng_state, lambda: torch.rand(1)),
        _Generator("Python's random generator", random.getstate, random.setstate, random.random),
    ]
    if torch.cuda.is_initialized():
        get, put = torch.cuda.get_rng_state, torch.cuda.set_rng_state
        found.append(_Generator("the GPU's random generator", get, put, lambda: torch.rand(1, device="cuda")))
    # An operator that has not imported NumPy does not use its generator.
    if (numpy := sys.modules.get("numpy")) is not None:
        source = numpy.random
        found.append(_Generator("NumPy's random generator", source.get_state, source.set_state, source.random))
    return found


def _as_bytes(state: Any) -> bytes:
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)


@contextmanager
def generators_kept(when: str = "") -> Iterator[None]:
    """A scope that must leave the random generators of the process as they are; puts them back.

    Args:
        when: what the scope does, for the message.

    Raises:
        Mismatch: it changes the state of one.
    """
    generators = _generators()
    before = [(each, each.read()) for each in generators]
    for each in generators:
        # A seed that somebody has just set is not what the scope sets.
        each.draw()
    drawn = [_as_bytes(each.read()) for each in generators]
    try:
        yield
        for each, state in zip(generators, drawn, strict=True):
            if _as_bytes(each.read()) != state:
                raise Mismatch(
                    f"changes the state of {each.name}{when}, which other code draws from: take a seed as an argument"
                )
    finally:
        for each, state in before:
            each.write(state)


@contextmanager
def settings_kept(when: str = "") -> Iterator[None]:
    """A scope that must leave the settings of the process as they are; puts them back.

    Args:
        when: what the scope does, for the message.

    Raises:
        Mismatch: it changes one.
    """
    before = [(setting, setting.read()) for setting in _settings()]
    try:
        yield
    finally:
        changed = [(setting, value, now) for setting, value in before if (now := setting.read()) != value]
        _put_back([(setting, value) for setting, value, _ in changed])
    for setting, value, now in changed:
        raise Mismatch(
            f"changes {setting.name} from {value} to {now}{when} and leaves it so", expected=str(value), found=str(now)
        )


@contextmanager
def settings_restored() -> Iterator[None]:
    """A scope after which the settings of the process are as they were, whatever was called in it."""
    before = [(setting, setting.read()) for setting in _settings()]
    try:
        yield
    finally:
        _put_back([(setting, value) for setting, value in before if setting.read() != value])


@contextmanager
def settings_switched() -> Iterator[None]:
    """A scope in which settings that a process may choose have other values than before."""
    before = [(setting, setting.read()) for setting in _settings() if setting.switched is not None]
    try:
        for setting, value in before:
            assert setting.switched is not None
            _put_back([(setting, setting.switched(value))])
        yield
    finally:
        _put_back(before)


def _put_back(values: Sequence[tuple[_Setting, Any]]) -> None:
    for setting, value in values:
        if setting.write is not None:
            setting.write(value)


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Opens a scope in which PyTorch and its kernels use so many threads."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
