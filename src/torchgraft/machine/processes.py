"""Where processes come from that share nothing with this one."""

import importlib.util
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

# What the path of a socket has room for, less what multiprocessing adds to the folder of temporary files.
_MOST_BYTES_OF_FOLDER = 108 - len("/pymp-12345678/listener-12345678") - 1
_imported = {"torch"}
# For an interpreter, as `-W` takes it: see torchgraft/_private/torch_without_numpy.py.
_WITHOUT_NUMPY = "ignore:Failed to initialize NumPy:UserWarning"
# multiprocessing removes what a process that was ended has left behind, and warns of it.
_WITHOUT_LEFT_BEHIND = "ignore:resource_tracker:UserWarning"


def clean_processes(imported: Iterable[str] = ()) -> Any:
    """A context of multiprocessing whose processes are new, and have PyTorch imported already where that can be.

    They are forked from one process that has imported PyTorch and nothing of ours, and done nothing with it. It is
    told of them through a socket in a folder: where the folder's name is too long, each imports all by itself.

    Args:
        imported: modules beside PyTorch that processes will need and that take long to import. They are there from the
            start if no process was made before.
    """
    unwanted = [_WITHOUT_LEFT_BEHIND]
    if importlib.util.find_spec("numpy") is None:
        unwanted.append(_WITHOUT_NUMPY)
    # multiprocessing gives an interpreter that it starts the options of this one.
    sys.warnoptions += [each for each in unwanted if each not in sys.warnoptions]
    folder = os.fsencode(tempfile.gettempdir())
    if "forkserver" not in multiprocessing.get_all_start_methods() or len(folder) > _MOST_BYTES_OF_FOLDER:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    _imported.update(imported)
    context.set_forkserver_preload(sorted(_imported))
    return context


def start_clean_processes(imported: Iterable[str] = ()) -> None:
    """Imports now, in the one process that others are forked from, what these will need; nobody waits for that.

    Args:
        imported: as for `clean_processes`.
    """
    if clean_processes(imported).get_start_method() == "forkserver":
        with patch.dict(os.environ, waiting_asleep()):
            multiprocessing.forkserver.ensure_running()


def waiting_asleep() -> dict[str, str]:
    """The variables of a process whose threads wait for work asleep: spinning, those of several take the cores."""
    return {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
