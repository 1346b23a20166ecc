"""Real inputs: calls of operators in a running model, written to a folder, or compared with their references.

`capture` writes calls, `shadow` compares some of them, and `read_folder` and `samples_from` make samples of what was
written. `watching` says which calls are seen.
"""

from torchgraft.capturing.capture import Capture, capture

__all__ = ["Capture", "capture"]
