"""The private PyTorch names that operators and their calls depend on, and nothing else.

PyTorch may change these without notice. Each stands behind a name of ours with a meaning of ours, and
`tests/test_torch_private.py` calls each, so that a PyTorch that broke one says which. (What only checks and packaging
need, as FakeTensorMode, stands there; the names of DTensor are in `dtensor_rules`.)
"""

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
import torch.autograd.forward_ad as forward_ad
from torch._C import _functorch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map_only

# Under which PyTorch keeps the kernels of a kind of device.
DEVICE_KEYS = {"cpu": "CPU", "cuda": "CUDA"}

# Whether autocast is on for any device: the cheap question before the exact one.
any_autocast = torch._C._is_any_autocast_enabled

# Whether torch.jit.trace records: the cheap question, without a frame of Python.
jit_tracing = torch._C._is_tracing

# How many TorchDispatchModes are active: each sees what runs below autograd.
dispatch_modes = torch._C._len_torch_dispatch_stack

# The switch torch.backends.cudnn.benchmark, in a tenth of the time.
cudnn_benchmark = torch._C._get_cudnn_benchmark

# Whether a torch.func transform runs: half of `transform_active`, without a frame of Python.
functorch_active = torch._C._are_functorch_transforms_active


# The other half: the module in which `_current_level` is 0 or more inside of `dual_level()`, and -1 elsewhere.
dual_levels: Any = forward_ad


def leave_to_python(function: Any, *, callees: bool = False) -> None:
    """Keeps TorchDynamo from compiling a function where Python calls it; what is compiled may still contain it.

    Args:
        function: with code of its own.
        callees: whether this holds for what the function calls, too.
    """
    frames = torch._C._dynamo.eval_frame
    action = frames._FrameAction
    strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if callees else action.DEFAULT)
    frames.set_code_exec_strategy(function.__code__, strategy)


def transform_active() -> bool:
    """Whether a torch.func transform runs, or code is inside `torch.autograd.forward_ad.dual_level()`."""
    return functorch_active() or forward_ad._current_level >= 0


def forward_mode_active() -> bool:
    """Whether tangents are being carried, by `forward_ad.dual_level()` or by `torch.func.jvp`."""
    if forward_ad._current_level >= 0:
        return True
    return _transforms_with(_functorch.TransformType.Jvp)


def functionalize_active() -> bool:
    """Whether code runs inside `torch.func.functionalize`, at any depth of transforms."""
    return _transforms_with(_functorch.TransformType.Functionalize)


def _transforms_with(kind: Any) -> bool:
    """Whether one of the transforms of torch.func that run is of this kind."""
    stack = _functorch.get_interpreter_stack() or ()
    return any(interpreter.key() == kind for interpreter in stack)


def schema_of(operator: Any) -> Any:
    """The FunctionSchema of an operator overload: names, types and defaults of its arguments, and its returns."""
    return operator._schema


def parse_schema(text: str) -> Any:
    """The FunctionSchema that a text declares; raises RuntimeError where it is none."""
    parsed = torch._C.parse_schema(text)
    # The parser takes any word for a type. Whoever defines an operator refuses those that nobody knows.
    with scoped_library("torchgraft_parsed", "FRAGMENT") as library:
        library.define("schema" + text[text.index("(") :])
    return parsed


def _dtype_of(number: int) -> torch.dtype:
    # The dispatcher takes the number for the dtype, as schemas do.
    return torch.ops.aten.empty.memory_format([0], dtype=number, device="meta").dtype


# What PyTorch's numbers for a word of a schema stand for: it gives defaults of these kinds as numbers.
MADE_OF_NUMBERS: dict[str, Callable[[int], Any]] = {
    "ScalarType": _dtype_of,
    "Layout": (
        torch.strided,
        torch.sparse_coo,
        torch.sparse_csr,
        torch._mkldnn,  # type: ignore[attr-defined]
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
        torch.jagged,
    ).__getitem__,
    "MemoryFormat": (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
    ).__getitem__,
}


def operator_namespaces() -> set[str]:
    """The namespaces in which operators are defined in this process: PyTorch's own, and those of packages."""
    return {name.partition("::")[0] for name in torch._C._dispatch_get_all_op_names()}


def undefine(library: torch.library.Library) -> None:
    """Undoes what a library defined, so that its names are free."""
    library._destroy()
    # When the object is collected PyTorch undoes all of it once more, and by then the names may be another library's.
    library._op_defs.clear()
    library._op_impls.clear()


class _Gone:
    """Takes the place of PyTorch's half of an overload that was undefined: PyTorch would follow a dead pointer."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __call__(self, /, *arguments: Any, **named: Any) -> NoReturn:
        raise RuntimeError(self._why)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Of the handle PyTorch calls methods, as `redispatch_boxed`.
        return self


def refuse_calls(operator: Any, why: str) -> None:
    """Makes calls of an operator overload, and of its packet, errors: its definition is gone."""
    packet, gone = operator.overloadpacket, _Gone(why)
    operator._op = operator._op_dk = operator._handle = packet._op = gone


def refuse_function(function: Any, why: str) -> None:
    """Makes calls of a function errors, by the functions in its closure, which it calls."""
    for cell in function.__closure__ or ():
        if callable(cell.cell_contents):
            cell.cell_contents = _Gone(why)


def refuse_name(library: torch.library.Library, operator: Any, why: str) -> None:
    """Makes calls errors that reach an operator overload through the dispatcher, as those of torch.jit.

    Args:
        library: undoes this where it is undefined.
        operator: the overload.
        why: for the error.
    """

    def refuse(*arguments: Any, **named: Any) -> NoReturn:
        raise RuntimeError(why)

    # Compilers that trace with sizes unknown ask the fake kernel, and without one PyTorch crashes.
    torch.library.register_fake(operator.name(), refuse, lib=library)
    for key in ("CPU", "CUDA", "Meta", "CompositeExplicitAutograd"):
        override(library, operator, refuse, key)
    forget_dispatch(operator)


def forget_dispatch(operator: Any) -> None:
    """Lets PyTorch look up anew which kernels an operator overload has, after one of them was removed.

    While a compiler traces, an overload remembers what it found. PyTorch does not forget it, and crashes.
    """
    operator._dispatch_cache.clear()


def forget_compiled() -> None:
    """Lets TorchDynamo compile everything anew, if it has compiled anything."""
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()


def name_for_caches(operator: Any, word: str) -> None:
    """Gives an operator overload another name in the code of graphs, which compilers' caches are keyed by.

    Graphs write an overload as `torch.ops.namespace.packet.__name__`; so that such code runs, the packet has an
    attribute of this name. PyTorch calls the overload by its name in the dispatcher, as before.

    Args:
        operator: an overload.
        word: an identifier.
    """
    packet = operator.overloadpacket
    operator.__name__ = f"{packet.__name__}.{word}"
    setattr(packet, word, operator)


def compilation() -> Any:
    """An object that stands for the compilation that runs; None where none does."""
    return torch._guards.TracingContext.try_get()


# Whether two tensors have the same storage; False for those without one.
share_memory: Callable[[torch.Tensor, torch.Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold the memory of one: itself, or those that it is made of, as the shard of a DTensor is."""
    if type(tensor) is torch.Tensor:
        return [tensor]
    if is_functional(tensor):
        return [tensor.elem]  # type: ignore[attr-defined]
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in parts_of(getattr(tensor, name))]


def is_functional(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for another while a compiler traces."""
    if type(tensor) is torch.Tensor:
        return False
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(tensor, FunctionalTensor)


def fake_mode_of(tensor: torch.Tensor) -> Any:
    """The FakeTensorMode of a tensor that has sizes and no memory, as compilers trace them; None of any other."""
    if type(tensor) is torch.Tensor:
        return None
    from torch._subclasses.fake_tensor import FakeTensor

    return tensor.fake_mode if isinstance(tensor, FakeTensor) else None


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds its values itself: no transform, compiler or class of tensors stands between."""
    if tensor.device.type == "meta" or _functorch.is_functorch_wrapped_tensor(tensor):
        return False
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return True
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return not is_traceable_wrapper_subclass(tensor) and not (fake and isinstance(tensor, fake.FakeTensor))


def references_to_storage(storage: torch.UntypedStorage) -> int:
    """How many tensors, and objects in Python, hold a storage."""
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count


def answer_at_compilation(name: str, question: Callable[..., bool], names: Sequence[str]) -> Callable[[Any], None]:
    """Makes a function that answers a question about the memory of tensors while TorchDynamo traces a frame.

    Args:
        name: of the local variable that gets the answer.
        question: takes what the local variables hold, tensors and lists of them, as fake tensors; and a list of those
            that stand for all tensors which were there before the frame, as its arguments and globals.
        names: of these variables.

    Returns:
        What `torch._dynamo.comptime.comptime` calls in that frame.
    """

    def answer(context: Any) -> None:
        from torch._dynamo.variables import ConstantVariable

        nodes = [context.get_local(each).as_proxy() for each in names]
        values = tree_map_only(torch.fx.Proxy, lambda proxy: proxy.node.meta["example_value"], nodes)
        frame = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
        before = [each.fake for each in frame.output.tracked_fakes if isinstance(each.fake, torch.Tensor)]
        frame.symbolic_locals[name] = ConstantVariable.create(question(*values, before))

    return answer


def callee_of(operator: Any) -> Any:
    """The function behind an operator overload, one Python frame cheaper; compilers know the overload only."""
    return operator._op


def recorded_convolution(device: str) -> Any:
    """PyTorch's convolution for Apple's GPUs, which records its gradient in C++.

    Args:
        device: the kind of device that it is to be called for.

    Returns:
        What calls it; None where this PyTorch has no such operator, or no library gave both of its kernels.
    """
    key, has_kernel = DEVICE_KEYS[device], torch._C._dispatch_has_kernel_for_dispatch_key
    forward, backward = "aten::_mps_convolution", "aten::mps_convolution_backward"
    try:
        if has_kernel(forward, key) and has_kernel(backward, f"Autograd{key}"):
            return torch._C._VariableFunctions._mps_convolution
    except (AttributeError, RuntimeError):
        pass
    return None


class _RaisedByAutograd(torch.Tensor):
    """A tensor without elements that raises an exception in every operator."""

    @staticmethod
    def __new__(cls: Any, error: BaseException, shape: Sequence[int], device: torch.device) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.uint8, device=device)

    def __init__(self, error: BaseException, shape: Sequence[int], device: torch.device) -> None:
        self._error = error

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, _RaisedByAutograd):
                raise each._error
        raise AssertionError


def raised_by_autograd(error: BaseException, shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """A tensor that a C++ kernel returns in place of a gradient, for autograd to raise an exception as it is.

    PyTorch's C interface would turn the exception into a RuntimeError. Autograd brings each gradient to the dtype of
    its tensor as soon as a node has returned it. This one has another dtype, and raises in that conversion.

    Args:
        error: the exception.
        shape: of the gradient, which autograd compares first.
        device: of the gradient.
    """
    return _RaisedByAutograd(error, shape, device)


def below_views(operator: Any, keyset: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Goes on with a call of an operator overload below the key that counts versions and makes views."""
    return operator.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *arguments, **named)


def below_autograd(operator: Any, keyset: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Goes on with a call of an operator overload below autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments, **named)


def watch_calls(library: torch.library.Library, operator: Any, watch: Callable[..., Any]) -> None:
    """Lets a function see every call of an operator overload that reaches a kernel, until the library is undone.

    PyTorch asks for the backend of a call after autograd, transforms and modes and before kernels, in eager code and in
    compiled graphs, under no_grad and in inference mode. Calls of operators that nobody watches pass there as before.

    Args:
        library: of the namespace of the operator.
        operator: the overload.
        watch: `watch(go_on, arguments, named)` returns the results of `go_on()`, which goes on with the call.
    """
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def watched(keyset: Any, /, *arguments: Any, **named: Any) -> Any:
        return watch(lambda: operator.redispatch(keyset & below, *arguments, **named), arguments, named)

    library.impl(operator.name().split("::")[1], watched, "BackendSelect", with_keyset=True)
    forget_dispatch(operator)


def without_autocast() -> AbstractContextManager[Any]:
    """A scope in which autocast neither casts nor is asked."""
    return torch._C._DisableAutocast()


# What a kernel that is called below a TorchDispatchMode must not leave out, by PyTorch's names of dispatch keys.
_LAZY = ("Conjugate", "Negative", "ZeroTensor")


def below_no_mode() -> AbstractContextManager[Any]:
    """A scope in which PyTorch computes lazy conjugates, negatives and zeros, as it does where no mode is.

    An operator that a TorchDispatchMode calls finds these dispatch keys excluded, as PyTorch has computed what is lazy
    in the arguments; `x.conj() * y` inside is then `x * y`. The first call of what torch.compile made runs in a mode.
    """
    if not torch._C._dispatch_tls_is_dispatch_key_excluded("Conjugate"):
        return nullcontext()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _LAZY:
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


@functools.cache
def is_of_onednn(dtype: torch.dtype) -> bool:
    """Whether PyTorch computes with bfloat16 or float16 in oneDNN on this processor."""
    names = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    asked = getattr(torch.ops.mkldnn, names[dtype], None)
    return asked is not None and bool(asked())


def without_modes() -> AbstractContextManager[Any]:
    """A scope without modes, as those in which compilers trace: tensors made in it hold values."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def constant_when_traced(function: Any) -> Any:
    """The function, whose result a compiler takes as it is when it traces a call.

    As `torch.compiler.assume_constant_result`, which imports the compiler: two seconds of everyone's `import`.
    """
    function._dynamo_marked_constant = True
    return function


@constant_when_traced
def has_saved_tensor_hooks() -> bool:
    """Whether what autograd saves goes through hooks now, as those of non-reentrant activation checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def boxed_kernel_of(operator: Any, key: str) -> Any:
    """A function that calls the kernel of an operator overload under a key of the dispatcher; None if it has none."""
    kernel = kernel_of(operator.name(), key)
    if kernel is None:
        return None
    keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return lambda *arguments: kernel.call_boxed(keyset, *arguments)


def override(library: torch.library.Library, operator: Any, function: Any, key: str) -> None:
    """Registers a kernel that goes before one that a compiled library registered."""
    with warnings.catch_warnings():
        # PyTorch warns of it, and here it is meant.
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl(operator.name().split("::")[1], function, key, allow_override=True)


def triton_called_directly() -> AbstractContextManager[Any]:
    """A scope in which what `torch.library.wrap_triton` gives is launched as it is, and not recorded."""
    from torch._library.triton import set_wrap_triton_enabled

    return set_wrap_triton_enabled(False)


def functional_mode() -> type:
    """The mode in which compilers trace: what is written to arguments is a result there."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    return FunctionalTensorMode


def driver_version() -> int:
    """The newest CUDA that the driver runs, as 13000 for 13.0; where there is a GPU."""
    found: int = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
    return found


def wait_on_gpu(seconds: float) -> None:
    """Keeps the current stream of the current GPU busy with nothing for about so long."""
    # In cycles, and no card runs above two thousand million a second by much.
    torch.cuda._sleep(int(seconds * 2e9))


def scoped_library(namespace: str, kind: str) -> AbstractContextManager[torch.library.Library]:
    """A torch.library.Library whose registrations are undone at the end of the scope."""
    return torch.library._scoped_library(namespace, kind)


def has_kernel(operator: Any, device: torch.device) -> bool:
    """Whether an operator overload has a kernel for a kind of device, and not only one for every kind."""
    key = torch._C._dispatch_key_for_device(device.type)
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key))


def has_autograd(operator: Any) -> bool:
    """Whether an operator overload has a gradient of its own, or is made of operators that may have some."""
    keys = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key) for key in keys)


def is_composite(operator: Any) -> bool:
    """Whether PyTorch takes an operator overload apart before autograd and compilers see it."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))


def kernel_of(name: str, key: str) -> Any:
    """The kernel of an operator, named as 'aten::mm.out', under a key of the dispatcher; None where there is none."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
        return None
    return torch.library.get_kernel(name, key)
