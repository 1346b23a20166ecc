"""Calls as CUDA graphs: a replay launches what the call launched, and the host's share of it does not count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Captured:
    """A call as a CUDA graph.

    Attributes:
        graph: is replayed.
        result: what the call returned; each replay writes it anew.
    """

    graph: torch.cuda.CUDAGraph
    result: Any

    def __call__(self) -> Any:
        """Replays the graph on the current stream."""
        self.graph.replay()
        return self.result


class Capturing:
    """Captures calls on a stream of its own, all in one pool of memory: so they must be replayed one after another.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        # As long as one graph lives in a pool its memory is used again and not asked of the driver.
        self._anchor = self.capture(lambda: torch.zeros(1, device=device))

    def call(self, call: Callable[[], Any]) -> Any:
        """Makes a call on the stream of the captures."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = call()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def capture(self, call: Callable[[], Any], *, warm_ups: int = 1) -> Captured:
        """A call as a graph.

        Args:
            call: is made so many times before, for what it does only at first. What it differentiates must have been
                computed on this stream, as by its own first call.
            warm_ups: how many times.
        """

        def capture() -> Any:
            for _ in range(warm_ups):
                call()
            # Not torch.cuda.graph(), which collects garbage first: that takes longer than to time most rows.
            graph.capture_begin(self._pool)
            try:
                return call()
            finally:
                graph.capture_end()

        graph = torch.cuda.CUDAGraph()
        return Captured(graph, self.call(capture))
