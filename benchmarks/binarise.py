"""How fast and in how much memory a corpus becomes batches.

Generates pairs like those of WMT 2014 English-German (about 25 words and 30 tokens a side, words by Zipf's law), learns
a tokenizer of 32,000 entries, binarises, opens the file, plans an epoch and iterates some batches. Each stage runs in a
process of its own, so that its peak memory is its own. Memory should not grow with the corpus:

    python benchmarks/binarise.py --pairs 500000 4500000
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

WORDS = 200_000
CHUNK = 50_000
BATCHES = 300


class Measured(NamedTuple):
    """A stage: what it did, how long it took, and the peak memory of its process and of the largest of its workers."""

    result: str
    seconds: float
    peak: int
    worker_peak: int


def vocabulary(random: np.random.Generator) -> np.ndarray:
    """Words of one to five syllables, the frequent ones short."""
    syllables = np.array([c + v + e for c in "bdfgklmnprstvz" for v in "aeiouäü" for e in ("", "n", "r", "st")])
    counts = np.minimum(1 + np.log10(np.arange(1, WORDS + 1)).astype(int), 5)
    return np.array(["".join(random.choice(syllables, count)) for count in counts], dtype=object)


def generate(folder: Path, pairs: int) -> str:
    random = np.random.default_rng(1)
    words = [vocabulary(random), vocabulary(random)]
    frequency = np.cumsum(np.arange(1, WORDS + 1) ** -1.15)
    with (folder / "source").open("wb") as source, (folder / "target").open("wb") as target:
        for start in range(0, pairs, CHUNK):
            size = min(CHUNK, pairs - start)
            lengths = np.clip(random.lognormal(3.0, 0.6, size), 1, 150)
            for file, side in ((source, words[0]), (target, words[1])):
                ends = np.maximum(lengths * random.lognormal(0, 0.15, size), 1).astype(int).cumsum()
                ranks = np.searchsorted(frequency, random.random(ends[-1]) * frequency[-1])
                chosen = side[ranks].tolist()
                begins = [0, *ends.tolist()]
                lines = [" ".join(chosen[a:b]) for a, b in pairwise(begins)]
                file.write(("\n".join(lines) + "\n").encode())
    megabytes = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    return f"{megabytes:,.0f} MB of text"


def learn(folder: Path, pairs: int) -> str:
    from regard.data.corpus import open_pairs
    from regard.data.learn import learn_tokenizers
    from regard.text.tokenizer import TokenizerSettings

    sample = min(pairs, 200_000)
    tokenizers = learn_tokenizers(
        lambda: islice(open_pairs(folder / "source", folder / "target"), sample), TokenizerSettings(size=32_000)
    )
    tokenizers.save(folder)
    return f"{tokenizers.source.size:,} entries from {sample:,} pairs"


def binarise(folder: Path, processes: int) -> str:
    from regard.data.binarise import binarise as write
    from regard.data.corpus import open_pairs
    from regard.text.tokenizer import TokenizerPair

    path = folder / "pairs.arrow"
    pairs = open_pairs(folder / "source", folder / "target")
    started = time.perf_counter()
    report = write(pairs, TokenizerPair.load(folder), path, processes=processes)
    rate = report.read / (time.perf_counter() - started)
    size = path.stat().st_size
    return f"{rate:,.0f} lines/s; {size / 1e6:,.0f} MB, {size / report.kept:.0f} bytes a pair; {report}"


def plan(folder: Path, tokens: int) -> str:
    from regard.data.batches import Batches, BatchSettings
    from regard.data.dataset import PairDataset
    from regard.text.tokenizer import TokenizerPair

    tokenizers = TokenizerPair.load(folder)
    times = [time.perf_counter()]
    dataset = PairDataset.open(folder / "pairs.arrow", tokenizers)
    times.append(time.perf_counter())
    batches = Batches(dataset, BatchSettings(tokens=tokens))
    count = batches.count(0)
    times.append(time.perf_counter())
    built = sum(1 for _ in islice(batches.epoch(0), BATCHES))
    times.append(time.perf_counter())
    opening, planning, building = np.diff(times)
    share = batches.real_share(0)
    return (
        f"open {opening:.2f} s, plan {count:,} batches of {tokens:,} in {planning:.2f} s, "
        f"{1000 * building / built:.2f} ms a batch, {share.both:.1%} real tokens"
    )


def measured(stage: Callable[..., str], *arguments: Any) -> Measured:
    """Run a stage here, in a process that does nothing else."""
    started = time.perf_counter()
    result = stage(*arguments)
    seconds = time.perf_counter() - started
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return Measured(result, seconds, int(peak.split()[1]) // 1024, workers // 1024)


def alone(stage: Callable[..., str], *arguments: Any) -> Measured:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measured, stage, *arguments).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 300_000])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()
    table = Table("pairs", "stage", "seconds", "peak MiB", "worker MiB", "result")
    for pairs in options.pairs:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for stage, arguments in (
                (generate, (folder, pairs)),
                (learn, (folder, pairs)),
                (binarise, (folder, options.processes)),
                (plan, (folder, options.tokens)),
            ):
                found = alone(stage, *arguments)
                table.add_row(
                    f"{pairs:,}",
                    stage.__name__,
                    f"{found.seconds:.1f}",
                    f"{found.peak:,}",
                    f"{found.worker_peak:,}" if found.worker_peak else "",
                    found.result,
                )
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
