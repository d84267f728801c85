"""Time and memory of attention over long rows, by mask and bias: one process for each, so that peaks do not mix.

python benchmarks/long_attention.py [LENGTH ...]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from regard.model.attention import attention
from regard.model.masks import self_attention_mask
from regard.model.places import run
from regard.model.positions import POSITIONS
from regard.model.reference import reference_attention
from regard.model.settings import ModelSettings

LENGTHS = (512, 2048, 8192, 16384)
CASES: dict[str, dict[str, Any]] = {
    "causal": {},
    "documents": {},
    "window": {"spans": ["window"], "window": 256},
    "blocks": {"spans": ["blocks"], "window": 2, "block": 128, "global_tokens": 64},
    "alibi": {"positions": "alibi"},
    "softcap": {"attention_softcap": 30.0},
}


def measure(name: str, length: int, plain: bool) -> None:
    """Print milliseconds and megabytes of one causal attention, 8 heads of 64, without gradients."""
    settings = ModelSettings.model_validate(CASES[name])
    places = run(0, length)
    if name == "documents":
        places = replace(places, document=torch.arange(length)[None] // 512, start=None)
    mask = self_attention_mask(places, places, settings, settings.span(0), causal=True)
    relation = POSITIONS[settings.positions](settings, causal=True).relate(places, places)
    bias = relation.bias if relation else None
    query, key, value = torch.randn(3, 1, 8, length, 64)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    with torch.inference_mode():
        execution = reference_attention if plain else attention
        execution(query, key, value, mask, bias, softcap=settings.attention_softcap)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{(time.perf_counter() - begin) * 1000:.0f} / {(peak - before) / 1024:.0f}")


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        measure(sys.argv[2], int(sys.argv[3]), sys.argv[4:] == ["plain"])
        return
    lengths = [int(word) for word in sys.argv[1:]] or LENGTHS
    print(f"ms / MB above the inputs, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("| mask or bias |", " | ".join(f"{length:,}" for length in lengths), "|")
    print("|---|" + "---|" * len(lengths))
    for name in CASES:
        cells = []
        for length in lengths:
            command = [sys.executable, __file__, "--one", name, str(length)]
            cells.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        print(f"| {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
