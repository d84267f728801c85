"""Copying and reversing random sequences: the smallest proof that attention finds positions.

Sequences of 10 to 20 letters, 20,000 to learn from, 1,000 others to test on. Prints exact matches and wall time.

    python benchmarks/copy_reverse.py [--threads 2]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import regard
from regard.runs.run import train
from regard.runs.settings import RunSettings
from regard.text.lines import write_lines
from regard.training.terminal import TerminalView

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    table = Table("task", "exact", "of", "seconds")
    for task in ("copy", "reverse"):
        with tempfile.TemporaryDirectory() as folder:
            exact, count, seconds = solve(Path(folder), task, threads)
        table.add_row(task, f"{exact}", f"{count}", f"{seconds:.0f}")
    Console().print(table)


def solve(folder: Path, task: str, threads: int) -> tuple[int, int, float]:
    """Train on one task; return the number of exact matches, of test sequences, and the seconds of it all."""
    begin = time.monotonic()
    generator = random.Random(1)
    files = {part: write(folder, part, count, task, generator) for part, count in (("train", 20_000), ("dev", 200))}
    settings = RunSettings.parse(
        {
            "data": files,
            "tokenizer": {"size": 4 + 256 + len(LETTERS)},  # each letter with its space is a piece, and no more
            "model": {
                "d_model": 128, "d_ff": 256, "heads": 4, "encoder_layers": 2, "decoder_layers": 2,
                "dropout": 0.0, "norm_placement": "pre",
            },
            "batches": {"tokens": 2048},
            "training": {
                "steps": 1200, "threads": threads, "clip_norm": 1.0, "label_smoothing": 0.0,
                "schedule": {"kind": "linear", "peak_rate": 0.003, "warmup_steps": 100},
            },
            "validation": {"every": 300, "samples": 1},
        },
        "benchmark",
    )  # fmt: skip
    train(folder / "run", settings, TerminalView(), print)
    sequences = [sequence(generator) for _ in range(1000)]
    found = regard.load(folder / "run").translate([" ".join(letters) for letters in sequences], beam=1)
    exact = sum(output == " ".join(answer(letters, task)) for output, letters in zip(found, sequences, strict=True))
    return exact, len(sequences), time.monotonic() - begin


def write(folder: Path, part: str, count: int, task: str, generator: random.Random) -> dict[str, str]:
    sequences = [sequence(generator) for _ in range(count)]
    source, target = folder / f"{part}.source", folder / f"{part}.target"
    write_lines(source, (" ".join(letters) for letters in sequences))
    write_lines(target, (" ".join(answer(letters, task)) for letters in sequences))
    return {"source": str(source), "target": str(target)}


def sequence(generator: random.Random) -> list[str]:
    return generator.choices(LETTERS, k=generator.randint(10, 20))


def answer(letters: list[str], task: str) -> list[str]:
    return letters if task == "copy" else letters[::-1]


if __name__ == "__main__":
    main()
