"""What each option of training is worth: a run for each option and seed, and a table of what came of them.

    python benchmarks/ablations.py --data DIR --out runs/ablations [--steps 3000] [--seeds 1 2 3] [--only plain muon]

`DIR` holds `train`, `val` and `test_2016_flickr` of Multi30k: `.en` and `.de`, or of tokenised text `.lc.norm.tok.en`.
The runs are of `recipes/multi30k-hour.yaml` without R-Drop and differ by what stands in `OPTIONS` only. As many run at
a time as there are `--lanes`, each on one thread; what is done is not done again, and what was cut short goes on. Times
are those that the steps took, so compare them only between runs that had the machine in the same way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

RECIPE = Path(__file__).parent.parent / "recipes" / "multi30k-hour.yaml"
OPTIONS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "adam": ("--training.optimizer.kind", "adamw", "--training.schedule.peak_rate", "0.005"),
    "r-drop": ("--training.r-drop", "5"),
    "ema": ("--training.ema", "0.998"),
    "subword dropout": ("--data.subword-dropout", "0.1"),
    "attention dropout": ("--model.attention-dropout", "0.1"),
    "activation dropout": ("--model.activation-dropout", "0.1"),
    "layer dropout": ("--model.layer-dropout", "0.1"),
    "weight decay": ("--training.optimizer.weight-decay", "0.01"),
    "6,000 pieces": ("--tokenizer.size", "6000"),
    "r-drop, subword dropout": ("--training.r-drop", "5", "--data.subword-dropout", "0.1"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--also", nargs=argparse.REMAINDER, default=[], help="further options of every run")
    options = parser.parse_args()
    wanted = [(name, seed) for seed in options.seeds for name in options.only]
    with ThreadPoolExecutor(options.lanes) as lanes:
        for name, seed in lanes.map(lambda each: carry_out(*each, options), wanted):
            print(f"{name}, seed {seed}: {result(folder(name, seed, options))}", flush=True)
    show(options)


def folder(name: str, seed: int, options: argparse.Namespace) -> Path:
    directory: Path = options.out / f"{name.replace(' ', '-').replace(',', '')}-{options.steps}-{seed}"
    return directory


def carry_out(name: str, seed: int, options: argparse.Namespace) -> tuple[str, int]:
    """One run, in a process of its own; its output goes into a file beside its directory."""
    directory = folder(name, seed, options)
    if not (directory / "result.json").exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with directory.with_suffix(".log").open("a", encoding="utf-8") as log:
            command = [sys.executable, "-m", "regard", "train", str(RECIPE), "--out", str(directory)]
            subprocess.run(
                [*command, *files(options.data), *common(options.steps, seed), *chosen(name), *options.also],
                stdout=log,
                stderr=log,
                check=False,
            )
    return name, seed


def chosen(name: str) -> tuple[str, ...]:
    """The options of a run."""
    own = OPTIONS[name]
    return own if "--training.r-drop" in own else (*own, "--training.r-drop", "0")


def files(data: Path) -> list[str]:
    """The options that name the text."""
    found = []
    for part, name in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        for side, language in (("source", "en"), ("target", "de")):
            (path,) = [path for path in data.glob(f"{name}*.{language}") if path.name.split(".")[0] == name]
            found += [f"--data.{part}.{side}", str(path)]
    return [*found, "--metrics.tokenize", "none" if ".tok." in found[1] else "13a"]


def common(steps: int, seed: int) -> list[str]:
    """What all runs have in common, beside the recipe."""
    values = {"steps": steps, "seed": seed, "threads": 1}
    training = [word for key, value in values.items() for word in (f"--training.{key}", str(value))]
    return [*training, "--validation.every", str(max(steps // 10, 1)), "--validation.samples", "0"]


def result(directory: Path) -> dict[str, float] | None:
    """Scores and seconds of a run; None where it is not done."""
    if not (directory / "result.json").exists():
        return None
    scores = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    training = [record for record in records if record["kind"] == "training"]
    return {
        "bleu": scores["test"]["BLEU"],
        "loss": scores["validation"]["loss"],
        "minutes": training[-1]["seconds"] / 60,
    }


def show(options: argparse.Namespace) -> None:
    """All runs that are done: means over the seeds, and each BLEU."""
    table = Table("option", "test BLEU", "of each seed", "validation loss", "minutes", title=f"{options.steps} steps")
    for name in options.only:
        found = [each for seed in options.seeds if (each := result(folder(name, seed, options))) is not None]
        if found:
            mean = {key: statistics.mean(each[key] for each in found) for key in found[0]}
            seeds = ", ".join(f"{each['bleu']:.1f}" for each in found)
            table.add_row(name, f"{mean['bleu']:.2f}", seeds, f"{mean['loss']:.3f}", f"{mean['minutes']:.1f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
