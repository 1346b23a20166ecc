"""`torchgraft.shadow`: compares some calls of operators with their references while a model runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from torchgraft.capturing.capture import Operators, find_operators, is_recording_graph
from torchgraft.capturing.folder import CAPTURED_NAME, copied, describe, file_of, sample_in_memory, write_call
from torchgraft.capturing.samples import CapturedSample
from torchgraft.capturing.taken import TakenCall, take
from torchgraft.capturing.watching import WatchedCall, unwatched, watching
from torchgraft.checking.call import Call
from torchgraft.checking.subject import target_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.declaration.results import as_tuple
from torchgraft.declaration.schema import tensors_in
from torchgraft.finding.samples import samples_of
from torchgraft.operator import Operator
from torchgraft.operator.call import replace_in_call
from torchgraft.sampling import Samples

_log = logging.getLogger("torchgraft.shadow")
