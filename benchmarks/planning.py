"""What `regard train --plan` says of a run, beside what the run then takes: memory at the peak, and time.

    python benchmarks/planning.py --data FOLDER [--clock cpu] [--seconds 20] [--lines 20000] [--only NAME ...]

Twelve short runs, one thread each: from tiny to the paper's base model, small and large batches, all tasks, several
corpora and optimizers. FOLDER holds multi30k, europarl20k_en-de, homeassistant_ui and tinyshakespeare. Of every second
run the text is prepared by the plan, of the others by the run too. On a machine that is busy with other work, `--clock
cpu` compares the processor's time of both instead of the time that passes. Linux.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from regard.inspection.costs import parameters_by_part
from regard.recipes import dump_yaml, merge
from regard.runs.memory import size
from regard.runs.plan import Plan, plan
from regard.runs.tasks import resolve
from regard.text.lines import read_lines, write_lines

Values = dict[str, Any]


class Actual(NamedTuple):
    """What a run took."""

    peak: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    console = Console(width=130)
    table = Table("run", "parameters", "memory", "actual", "error", "seconds", "actual", "error")
    errors: dict[str, list[float]] = {"memory": [], "time": []}
    with tempfile.TemporaryDirectory() as folder:
        for place, (name, values) in enumerate(configurations(options.data, Path(folder), options.lines).items()):
            if options.only and name not in options.only:
                continue
            out = Path(folder) / f"run{place}"
            settings = resolve(values, name)
            prepared = out if place % 2 else None
            made = plan(prepared, settings, parameters_by_part, print, seconds=options.seconds, clock=options.clock)
            actual = carry_out(values, out, options.clock)
            foretold = sum(made.seconds.values())
            errors["memory"].append(made.peak / actual.peak - 1)
            errors["time"].append(foretold / actual.seconds - 1)
            row = (
                f"{name}{'' if prepared else ', with preparation'}", f"{parameters(made) / 1e6:.1f}M",
                size(made.peak), size(actual.peak), f"{errors['memory'][-1]:+.0%}",
                f"{foretold:.0f}", f"{actual.seconds:.0f}", f"{errors['time'][-1]:+.0%}",
            )  # fmt: skip
            table.add_row(*row)
            print(*row, sep=" | ", flush=True)
            stages = [f"{stage} {spent:.1f}" for stage, spent in made.seconds.items()]
            print(*stages, f"counted {size(made.look.needed.peak)}", sep=", ", flush=True)
    console.print(table)
    for what, found in errors.items():
        sizes = [abs(error) for error in found]
        console.print(f"{what}: median error {median(sizes):.1%}, largest {max(sizes):.1%}")


def parameters(made: Plan) -> int:
    return sum(part.parameters for part in made.look.parts)


def carry_out(values: Values, out: Path, clock: str) -> Actual:
    """The run itself, by the command."""
    recipe = out.with_suffix(".yaml")
    recipe.write_text(dump_yaml(values), encoding="utf-8")
    begin = time.time()
    command = [sys.executable, "-m", "regard", "train", str(recipe), "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert child.stderr is not None
    said = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(said)
    spent = usage.ru_utime + usage.ru_stime if clock == "cpu" else time.time() - begin
    return Actual(usage.ru_maxrss * 1024, spent)


def configurations(data: Path, folder: Path, lines: int) -> dict[str, Values]:
    """The recipes by name, each with so many lines of its training text."""
    captions = translation(
        short(folder, pair(data / "multi30k/raw", "train.en", "train.de"), lines),
        short(folder, pair(data / "multi30k/raw", "val.en", "val.de"), 400),
        short(folder, pair(data / "multi30k/raw", "test_2016_flickr.en", "test_2016_flickr.de"), 100),
    )
    speech = translation(
        short(folder, pair(data / "europarl20k_en-de", "europarl20k.en", "europarl20k.de"), lines),
        short(folder, pair(data / "europarl20k_en-de", "newstest2014.first1000.en", "newstest2014.first1000.de"), 100),
        short(folder, pair(data / "europarl20k_en-de", "newstest2015.first1000.en", "newstest2015.first1000.de"), 50),
    )
    strings = translation(
        short(folder, {"source": str(data / "homeassistant_ui/train.en-de.tsv")}, lines),
        short(folder, {"source": str(data / "homeassistant_ui/dev.en-de.tsv")}, 400),
    )
    english = short(folder, {"source": str(data / "europarl20k_en-de/europarl20k.en")}, lines)
    shakespeare = {"source": str(data / "tinyshakespeare/input.txt")}
    return {
        "tiny, captions": run(captions, "tiny", 24, tokens=1800),
        "tiny, small batches, Muon": run(captions, "tiny", 40, tokens=600, optimizer={"kind": "muon"}),
        "tiny, accumulated": run(captions, "tiny", 8, tokens=3000, accumulate=2),
        "small, interface strings": run(strings, "small", 20, tokens=1000),
        "small, parliament": run(speech, "small", 6, tokens=3000),
        "2 layers of base": run(captions, "paper-C1", 8, tokens=1000),
        "base": run(captions, "paper-base", 4, tokens=1000),
        "tiny, T5 positions": run(captions, "tiny", 20, tokens=1800, model={"positions": "t5"}),
        "language model, tiny": text("language-model", shakespeare, "tiny-lm", 30, packing={"context": 128}),
        "language model, average": text(
            "language-model", english, "small-lm", 8, packing={"context": 128, "rows": 16}, ema=0.99
        ),
        "masked language model": text("masked-language-model", english, "tiny-encoder", 24, masking={"tokens": 2048}),
        "digits": digits(),
    }


def pair(folder: Path, source: str, target: str) -> Values:
    return {"source": str(folder / source), "target": str(folder / target)}


def short(folder: Path, files: Values, count: int) -> Values:
    """The first lines of some files."""
    cut = {side: folder / Path(path).name for side, path in files.items()}
    for side, path in files.items():
        write_lines(cut[side], islice(read_lines(Path(path)), count))
    return {side: str(path) for side, path in cut.items()}


def translation(train: Values, dev: Values, test: Values | None = None) -> Values:
    return {"data": {"train": train, "dev": dev, "test": test}, "tokenizer": {"size": 4000}}


def run(
    corpus: Values, preset: str, steps: int, *, tokens: int, model: Values | None = None, **training: Any
) -> Values:
    schedule = {"kind": "linear", "peak_rate": 0.001, "warmup_steps": 100}
    return merge(
        corpus,
        {
            "preset": preset,
            "model": model or {},
            "batches": {"tokens": tokens},
            "training": {"steps": steps, "threads": 1, "schedule": schedule, **training},
            "validation": {"every": steps // 2, "sentences": 100},
        },
    )


def text(task: str, train: Values, preset: str, steps: int, *, ema: float | None = None, **rows: Values) -> Values:
    schedule = {"kind": "linear", "peak_rate": 0.001, "warmup_steps": 100}
    return {
        "task": task,
        "data": {"train": train},
        "tokenizer": {"size": 4000, **({"mask": True} if task == "masked-language-model" else {})},
        "preset": preset,
        "training": {"steps": steps, "threads": 1, "schedule": schedule, "ema": ema},
        "validation": {"every": steps // 2},
        **rows,
    }


def digits() -> Values:
    training = {"steps": 400, "threads": 1, "schedule": {"kind": "linear", "peak_rate": 0.002, "warmup_steps": 100}}
    return {
        "task": "image-classification",
        "data": {"corpus": "digits"},
        "preset": "digits",
        "training": training,
        "validation": {"every": 200},
    }


if __name__ == "__main__":
    main()
