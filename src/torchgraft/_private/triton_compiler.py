"""The private names of Triton's compiler that torchgraft depends on; it compiles kernels for GPUs that are absent."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch

# The compute capabilities that kernels are compiled for, and the most bytes of shared memory that a block has there.
TARGETS = {80: 166_912, 90: 232_448}


class CompilationError(Exception):
    """A kernel does not compile for a GPU; says why, and where.

    Attributes:
        source: the lines of the kernel up to the one at fault; empty if that is not known.
    """

    def __init__(self, message: str, source: str = "") -> None:
        super().__init__(message)
        self.source = source


class Compiler:
    """Triton's compiler for a compute capability, such as 90."""

    def __init__(self, capability: int) -> None:
        self._compiler = importlib.import_module("triton.compiler.compiler")
        self._jit = importlib.import_module("triton.runtime.jit")
        self._capability = capability
        self._target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", capability, 32)
        self._backend = self._compiler.make_backend(self._target)

    def check(self, kernel: Any, arguments: Mapping[str, tuple[str, Any]], options: Mapping[str, Any]) -> None:
        """Compiles a kernel as far as Triton's own language: fast, and finds what that does not allow.

        Raises:
            CompilationError: it does not compile.
        """
        self._compile(kernel, arguments, options, only_language=True)

    def compile(self, kernel: Any, arguments: Mapping[str, tuple[str, Any]], options: Mapping[str, Any]) -> str:
        """Compiles a kernel, and returns its PTX.

        Raises:
            CompilationError: it does not compile, or needs more shared memory than a block has.
        """
        made = self._compile(kernel, arguments, options, only_language=False)
        if made.metadata.shared > TARGETS[self._capability]:
            raise CompilationError(
                f"a block needs {made.metadata.shared} bytes of shared memory, and has {TARGETS[self._capability]}: "
                "make its blocks smaller, or give it fewer stages"
            )
        return str(made.asm["ptx"])

    def _compile(
        self, kernel: Any, arguments: Mapping[str, tuple[str, Any]], options: Mapping[str, Any], *, only_language: bool
    ) -> Any:
        bind = self._jit.create_function_from_signature(kernel.signature, kernel.params, self._backend)
        given = {**options, "debug": False, "instrumentation_mode": ""}
        try:
            values = {name: self._value(*each) for name, each in arguments.items()}
            bound, specialization, chosen = bind(**values, **given)
            parsed, signature, constants, attributes = kernel._pack_args(
                self._backend, given, bound, specialization, chosen
            )
            source = self._compiler.ASTSource(kernel, signature, constants, attributes)
            if not only_language:
                return self._compiler.compile(source, target=self._target, options=parsed.__dict__)
            context = self._compiler.ir.context()
            self._compiler.ir.load_dialects(context)
            self._backend.load_dialects(context)
            functions = self._backend.get_codegen_implementation(parsed)
            return source.make_ir(self._target, parsed, functions, self._backend.get_module_map(), context)
        except Exception as error:
            raise _explained(error, kernel) from error

    def _value(self, kind: str, value: Any) -> Any:
        if kind == "tensor":
            return self._jit.MockTensor(getattr(torch, value))
        if kind == "dtype":
            return importlib.import_module("triton.language").dtype(value)
        return value


def _explained(error: BaseException, kernel: Any) -> CompilationError:
    """The innermost error of the compiler, with the line of the author's file where it is in the kernel itself."""
    inner, located = error, error
    while inner.__cause__ is not None:
        inner = inner.__cause__
        located = inner if hasattr(inner, "node") else located
    # An error without a text of its own was raised by Python, within the function that the compiler called.
    message = getattr(inner, "error_message", None) or f"{inner}".strip() or type(inner).__name__
    node, source = getattr(located, "node", None), getattr(located, "src", None)
    if node is None or source is None:
        return CompilationError(message.splitlines()[-1])
    lines = source.splitlines()[: node.lineno]
    if source == kernel.src:
        file, first = kernel.fn.__code__.co_filename, kernel.fn.__code__.co_firstlineno
        # Decorators come before the line of the definition.
        first += next((n for n, line in enumerate(kernel.raw_src) if line.lstrip().startswith("def ")), 0)
        message = f"{message} ({file}:{first + node.lineno - 1}: {lines[-1].strip()})"
    else:
        message = f"{message} ({lines[0].strip()} line {node.lineno}: {lines[-1].strip()})"
    return CompilationError(message, "\n".join(lines[-4:]))
