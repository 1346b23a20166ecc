"""A good call after one that was refused: the refusal must leave nothing behind, as scratch that is used again."""

from typing import Any

from torchgraft.checking.call import Call
from torchgraft.checking.tensors.compare import Mismatch


def expect_as_before(call: Call, expected: Any, refused: str, summed: int | None = None) -> None:
    """Repeats a good call after a refused one.

    Args:
        call: it gave the expected results before.
        expected: its results, in float64.
        refused: what was wrong with the call that was refused.
        summed: how many products one element is a sum of; None: as the samples say.

    Raises:
        Mismatch: it gives other results now, or raises an error.
    """
    why = f"a call that was refused ({refused}) leaves something behind, as scratch that is not cleared: the next one"
    try:
        found = call.function(*call.arguments)
    except Exception as error:
        raise Mismatch(f"{why}, which is right, raises {type(error).__name__}: {error}") from error
    options = {} if summed is None else {"summed": summed}
    call.expect_close(found, expected, what=f"{why}, which was right before,", **options)
