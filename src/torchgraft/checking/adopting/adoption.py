"""The names of an operator to adopt, of its reference and of its samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Adoption:
    """The names that a person gives of an operator to check; names alone travel to other processes.

    Attributes:
        target: `torch.ops.namespace.name`, `namespace::name`, and `.overload` behind either.
        reference: `module:function`, or `file.py:function`.
        samples: the module or the file that has `samples`; empty: random ones that fit the schema.
        imports: modules that register the operator as they are imported.
        device: the kind of device on which it is tried.
        without_gradient: names of arguments that have none, although the reference has one.
    """

    target: str
    reference: str
    samples: str = ""
    imports: tuple[str, ...] = ()
    device: str = "cpu"
    without_gradient: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """The words of the command that checks it again, without `graft`."""
        words = ["adopt", self.target, "--reference", self.reference]
        words += ["--samples", self.samples] if self.samples else []
        for option, names in (("--import", self.imports), ("--no-gradient", self.without_gradient)):
            for name in names:
                words += [option, name]
        return words
