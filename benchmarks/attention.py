"""Plain attention beside torch's fused kernel on this machine: where `FEW_SCORES` of regard.model.attention comes from.

    python benchmarks/attention.py [--threads 2]

Forward and backward of one attention over about 4,096 positions, causal as in a decoder, and with padding as in an
encoder; median of 15 calls in milliseconds.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from regard.model.attention import fused_attention, reference_attention
from regard.model.masks import Mask, causal, padding

POSITIONS = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    title = f"attention, forward + backward, ms ({platform.machine()}, {torch.get_num_threads()} threads)"
    table = Table("heads x width", "length", "mask", "plain", "fused", "fused / plain", title=title)
    for heads, width in ((4, 32), (8, 64)):
        for length in (8, 16, 32, 64, 128, 256):
            for name, mask in masks(POSITIONS // length, length).items():
                plain, fused = measure(heads, width, length, mask)
                row = (f"{plain:.2f}", f"{fused:.2f}", f"{fused / plain:.2f}")
                table.add_row(f"{heads} x {width}", str(length), name, *row)
    Console().print(table)


def masks(batch: int, length: int) -> dict[str, Mask | None]:
    real_BS = torch.arange(length) < torch.randint(length - length // 8, length + 1, (batch, 1))
    return {"causal": causal(length, length), "padding": padding(real_BS)}


def measure(heads: int, width: int, length: int, mask: Mask | None) -> tuple[float, float]:
    shape = (POSITIONS // length, heads, length, width)
    query, key, value = (torch.randn(shape, requires_grad=True) for _ in range(3))
    gradient = torch.randn(shape)

    def plain() -> Tensor:
        return reference_attention(query, key, value, mask).output_BHTE

    def fused() -> Tensor:
        return fused_attention(query, key, value, mask)

    return median(lambda: plain().backward(gradient)), median(lambda: fused().backward(gradient))


def median(call: Callable[[], object], times: int = 15) -> float:
    for _ in range(3):
        call()
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds)


if __name__ == "__main__":
    main()
