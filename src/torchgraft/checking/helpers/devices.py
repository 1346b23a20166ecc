"""Several devices in one process: each is a thread, and collectives copy between threads.

PyTorch tests its own DTensor so. The names of PyTorch's that this leans on are private.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run_on_devices(count: int, function: Callable[[], _Result]) -> list[_Result]:
    """Runs a function on so many devices at once, and returns what each gives.

    In the function `torch.distributed` is initialized; devices are of the kind 'cpu'.

    Raises:
        Exception: what a device raised, the first that did so; the others are ended.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore
    from torch.testing._internal.distributed.multi_threaded_pg import ProcessLocalGroup

    results: dict[int, _Result] = {}
    errors: list[BaseException] = []

    def run(rank: int, store: Any) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=count, store=store)
            results[rank] = function()
        except SystemExit:
            # Another device failed, and ends this one.
            pass
        except BaseException as error:
            errors.append(error)
            with ProcessLocalGroup._coll_lock:
                ProcessLocalGroup.exception_handle(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    with _threads_as_processes():
        ProcessLocalGroup.reset()
        store = HashStore()
        threads = [threading.Thread(target=run, args=(rank, store), daemon=True) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ProcessLocalGroup.reset()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(count)]


def make_mesh(shape: Sequence[int]) -> Any:
    """Makes a mesh of the devices of `run_on_devices`; called in each of them."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", tuple(shape))
    # PyTorch caches results for a mesh by the number of the thread that made it. A later thread may get the same number
    # and have another place in the mesh.
    mesh._thread_id = next(_numbers)
    mesh._hash = None
    return mesh


# These numbers are smaller than those of threads.
_numbers = itertools.count(1)


@contextmanager
def _threads_as_processes() -> Iterator[None]:
    """A scope in which every thread has a process group of its own."""
    import torch._C._distributed_c10d as c10d
    from torch.distributed.tensor import _sharding_prop

    isolate: Any = vars(c10d)["_set_thread_isolation_mode"]
    propagator: Any = _sharding_prop.ShardingPropagator
    from torch.testing._internal.distributed import multi_threaded_pg

    lock = getattr(propagator, "_fake_mode_lock", None)
    isolate(True)
    multi_threaded_pg._install_threaded_pg()
    # Two threads must not make tensors without data at once.
    propagator._fake_mode_lock = threading.RLock()
    # PyTorch warns in every thread about the way in which tensors are moved here.
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
        propagator._fake_mode_lock = lock
        multi_threaded_pg._uninstall_threaded_pg()
        isolate(False)
