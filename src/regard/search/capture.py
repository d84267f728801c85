"""A step that is carried out again and again, over the same tensors: as it is, or captured as a CUDA graph.

A step of a decoder is some hundred small kernels. Launched one by one from Python they keep a GPU waiting; a graph of
them is launched at once (torch: "CUDA semantics", section "CUDA Graphs").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from threading import Lock

import torch
from torch import Tensor

Step = Callable[[], Tensor]
"""Reads and writes tensors that stay where they are; the tensor it returns is good until the next time."""
Capture = Callable[[Step], Step]
"""Makes of a step what does the same, after carrying it out a few times on what the tensors hold just now."""

WARM_UP = 3
"""So many times a step is carried out before it is captured, as torch does: libraries set themselves up meanwhile."""

_capturing = Lock()
"""A process may capture one graph at a time."""


def has_graphs(device: torch.device) -> bool:
    """Whether steps can be captured there, as far as the kind of device says."""
    return device.type == "cuda"


def capture_on(device: torch.device) -> Capture:
    """How steps are captured on a device."""
    return partial(as_graph, device=device) if has_graphs(device) else directly


def directly(step: Step) -> Step:
    """The step itself."""
    return step


def as_graph(step: Step, device: torch.device) -> Step:
    """The kernels of a step on a CUDA device, launched all at once.

    Warm-up and capture share a stream, so that libraries have what they need there. Other threads go on with their own
    work meanwhile ("thread_local").

    Raises:
        RuntimeError: the step cannot be captured: it brings something to the host or the other way round.
    """
    with _capturing, torch.cuda.device(device):
        stream, caller = _side_stream(device), torch.cuda.current_stream()
        stream.wait_stream(caller)
        try:
            with torch.cuda.stream(stream):  # around the capture too, which does not leave its stream where it fails
                for _ in range(WARM_UP):
                    step()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    output = step()
        finally:
            caller.wait_stream(stream)

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
