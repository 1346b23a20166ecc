"""What the modules behind an Operator ask of it; they cannot import it, as it imports them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torchgraft._autocasting import AutocastRule
from torchgraft.schema import Argument, Arrangement
from torchgraft.sharding import Sharding


class Declared(Protocol):
    """An Operator; see there."""

    name: str
    namespace: str
    qualified_name: str
    identity: str
    public: Any
    raw: Any
    reference: Callable[..., Any]
    output: Callable[..., Any]
    knows_output: bool
    sizes_from_data: bool
    gradient: Callable[..., Any] | None
    materialize_grads: bool
    unsaved: tuple[str, ...]
    not_differentiable: tuple[str, ...]
    vmap: Callable[..., Any] | None
    flops: Callable[..., int] | None
    autocast: AutocastRule
    mixed: tuple[str, ...]
    recorders: dict[str, Callable[..., Any]]
    arguments: tuple[Argument, ...]
    arrangement: Arrangement
    lists: tuple[bool, ...]
    constant_outputs: tuple[int, ...]
    output_count: int
    visible_outputs: int
    mutates: bool
    wants_kernels: bool
    autograd: Any

    @property
    def sharding(self) -> Sharding:
        """What may be cut over devices."""

    def complete(self, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call, in the order of the schema."""

    def filled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of all arguments, which PyTorch may call without those that equal their defaults."""

    def name_for_compilation(self) -> None:
        """Lets the caches of compilers tell what is declared now from what was declared when a graph was kept."""

    def call_public(self, *arguments: Any) -> Any:
        """Calls the public name; all arguments in the order of the schema."""

    def explain(self, *arguments: Any) -> None:
        """Raises the ValueError or TypeError that says what is wrong with arguments."""

    def visible(self, results: Any) -> Any:
        """What a caller sees of all results."""

    def needs_grad(self, arguments: Sequence[Any]) -> bool:
        """Whether a tensor needs a gradient that has one."""

    def note(self, arguments: Sequence[object], reason: str, what: str = ...) -> None:
        """Records that a call is slower than with a kernel."""

    def recover(self, error: Exception, arguments: Sequence[Any]) -> Any:
        """Raises what a person can use for an error of a call."""
