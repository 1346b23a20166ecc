"""Real inputs: calls of operators in a running model, written to a folder, and made samples of.

`writing` has `capture`, and `watching` says which calls it sees. `folder` reads what was written, and `samples` makes
samples of it.
"""

from torchgraft.capturing.folder import CapturedFileError
from torchgraft.capturing.writing import Capture, capture

__all__ = ["Capture", "CapturedFileError", "capture"]
