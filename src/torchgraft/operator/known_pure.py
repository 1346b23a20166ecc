"""Names that fingerprint.py knows: functions whose results follow from their arguments, settings, and attributes."""

from __future__ import annotations

import torch


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Modules of Python, PyTorch and Triton in which the results of every function follow from its arguments.
PURE = _names(
    """
    builtins math cmath operator _operator functools _functools itertools collections _collections collections.abc
    _collections_abc abc numbers types enum dataclasses contextlib bisect _bisect heapq _heapq _statistics string
    struct _struct fractions statistics torch.functional torch.nn.functional torch._C._nn torch._C._linalg
    torch._C._fft torch._C._special torch._C._sparse torch.linalg torch.fft torch.special torch.autograd
    torch.autograd.grad_mode torch.utils._contextlib torch.nn.parameter
    torch.nn.modules.module torch.types torch._tensor triton.language triton.language.core triton.language.math
    triton.language.standard triton.language.random
    """
)
PURE_IN = {
    "torch": _names(
        "Tensor Size device dtype layout memory_format finfo iinfo is_tensor typename _check _check_value "
        "_check_type _check_index _check_is_size sym_int sym_float sym_max sym_min sym_not sym_ite sym_sum "
        "sym_sqrt"
    ),
    "torch.library": _names("get_ctx wrap_triton"),
    "torch._library.triton": _names("wrap_triton"),
    "triton": _names("cdiv next_power_of_2"),
    "triton.runtime.autotuner": _names("Config Autotuner Heuristics"),
    "triton.runtime.jit": _names("JITFunction"),
    "torch._C": _names(
        "_FunctionBase TensorBase _TensorBase _TensorMeta _disabled_torch_function_impl _disabled_torch_dispatch_impl"
    ),
    "torch.autograd.function": _names(
        "Function FunctionCtx FunctionMeta once_differentiable _ContextMethodMixin _HookMixin _SingleLevelFunction"
    ),
    "torch._jit_internal": _names("boolean_dispatch"),
    "inspect": _names("BoundArguments Parameter Signature _ParameterKind _empty"),
    "re": _names("RegexFlag"),
    "reprlib": _names("recursive_repr"),
    "typing_extensions": _names("deprecated"),
    "typing": _names(
        "Any Generic NamedTuple NamedTupleMeta NewType Protocol TypedDict cast get_args get_origin overload "
        "_BaseGenericAlias _Final _GenericAlias _LiteralGenericAlias _LiteralSpecialForm _NotIterable _ProtocolMeta "
        "_SpecialForm _SpecialGenericAlias _UnionGenericAlias _no_init_or_replace_init _tp_cache"
    ),
    "threading": _names("Lock RLock"),
    "_thread": _names("RLock LockType lock allocate_lock allocate"),
}
IMPURE_IN = {
    "builtins": _names("open input id hash eval exec compile globals breakpoint help __import__ __build_class__"),
    "dataclasses": _names("fields asdict astuple"),
    # The layout of the result follows from the backends that are switched on.
    "torch.nn.functional": _names("scaled_dot_product_attention multi_head_attention_forward"),
    "torch._C._nn": _names("scaled_dot_product_attention"),
}
# Functions without arguments that return a setting: their value counts.
SETTINGS = (
    *(torch.get_num_threads, torch.get_default_dtype, torch.get_default_device, torch._C._get_cudnn_benchmark),
    *(torch.get_num_interop_threads, torch.get_float32_matmul_precision, torch.are_deterministic_algorithms_enabled),
)
# Members that Python or PyTorch itself adds to a class. Code that reads them cannot be described.
BY_PYTHON = _names(
    """
    __abstractmethods__ __annotate_func__ __annotations__ __annotations_cache__ __dataclass_fields__
    __dataclass_params__ __dict__ __dlpack_c_exchange_api__ __doc__
    __firstlineno__ __orig_bases__ __parameters__ __qualname__ _abc_impl
    __signature__ __slotnames__ __static_attributes__ __weakref__
    ___needs_generation_tag_patch
    """
)
# Attributes with two underscores that code may read.
READABLE = _names(
    """
    __dict__ __name__ __qualname__ __class__ __wrapped__ __self__ __func__ __members__ __version__ __init__ __new__
    __call__ __post_init__ __init_subclass__ __enter__ __exit__ __len__ __iter__ __next__ __contains__ __getitem__
    __setitem__ __getattr__ __getattribute__ __setattr__ __delattr__ __eq__ __hash__ __or__ __and__ __add__ __mul__
    __str__ __repr__ __main__ __triton_builtin__
    """
)
# The attributes that describe a Triton kernel, and an object that tunes it.
OF_TRITON = (
    *("fn", "configs", "keys", "values", "reset_to_zero", "restore_value", "early_config_prune", "perf_model"),
    *("configs_top_k", "do_not_specialize", "do_not_specialize_on_alignment", "noinline", "debug"),
)
