"""Small corpora and recipes of every task, learned in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from regard.recipes import merge
from regard.runs import run
from regard.runs.tasks import resolve
from regard.text.lines import write_lines
from regard.training.terminal import TerminalView
from regard.training.trainer import StepReport, Trainer

COLOURS = ("red", "green", "blue")
THINGS = ("dog", "cat", "horse", "bird")
PLACES = ("garden", "house", "street")

Recipe = dict[str, Any]


def sentences(count: int) -> list[str]:
    return [
        f"the {COLOURS[index % 3]} {THINGS[index % 4]} is in the {PLACES[(index // 2) % 3]} {index % 7}"
        for index in range(count)
    ]


def recipe(folder: Path, task: str) -> Recipe:
    """A whole recipe of a task, with its corpus written into `folder`."""
    lines = sentences(120)
    files: dict[str, list[str]] = {
        "translation": [f"{line}\t{line.upper()}" for line in lines],
        "language-model": lines,
        "masked-language-model": lines,
        "text-classification": [f"{line}\t{line.split()[1]}" for line in lines],
        "token-classification": [
            row for line in lines for row in (*(f"{word} {_tag(word)}" for word in line.split()), "")
        ],
    }
    parts = {"train": files[task], "dev": files[task][:30], "test": files[task][30:60]}
    if task == "token-classification":
        parts |= {"dev": files[task][: 10 * 9], "test": files[task][10 * 9 : 20 * 9]}
    for part, rows in parts.items():
        write_lines(folder / f"{part}.txt", rows)
    layers = {"translation": ("encoder", "decoder"), "language-model": ("decoder",)}.get(task, ("encoder",))
    batches = {
        "language-model": {"packing": {"context": 32, "rows": 4}, "generation": {"max_tokens": 5}},
        "masked-language-model": {"masking": {"context": 32, "tokens": 256}},
    }.get(task, {"batches": {"tokens": 256}})
    return {
        "task": task,
        "data": {part: {"source": str(folder / f"{part}.txt")} for part in parts} | _lengths(task),
        "tokenizer": {"size": 290},
        "model": {"d_model": 16, "d_ff": 32, "heads": 2, "max_length": 64} | {f"{side}_layers": 1 for side in layers},
        "training": {
            "steps": 12,
            "threads": 1,
            "accumulate": 2,
            "schedule": {"kind": "linear", "peak_rate": 0.01, "warmup_steps": 3},
        },
        "validation": {"every": 4, "samples": 1},
        **batches,
    }


def _tag(word: str) -> str:
    return "colour" if word in COLOURS else "thing" if word in THINGS else "other"


def _lengths(task: str) -> Recipe:
    return {} if "language-model" in task else {"max_length": 40}


class Killed(BaseException):
    """In place of a signal that leaves no time for anything."""


class Killer(TerminalView):
    """Kills a run after a step."""

    def __init__(self, step: int | None) -> None:
        super().__init__(Console(quiet=True))
        self.step = step

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        if report.step == self.step:
            raise Killed


def carry_out(directory: Path, values: Recipe, kill: int | None = None, **changes: Any) -> list[str]:
    """Carry out a recipe in a directory, with further settings; returns what was said."""
    said: list[str] = []
    run.train(directory, resolve(merge(values, changes), "recipe"), Killer(kill), said.append)
    return said
