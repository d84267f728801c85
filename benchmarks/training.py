"""Training speed in target tokens a second, beside other implementations on the same batches, in one run.

    python benchmarks/training.py --source train.en --target train.de [--model tiny|base] [--tokens 4096] [--threads 2]
                                  [--precisions float32 bfloat16]

Without files, 20,000 pairs of random words of caption length are made up. The peers: `torch.nn.Transformer` in a plain
loop, and Hugging Face's Marian model when `transformers` is installed. All have the same dimensions, tied embeddings,
label smoothing, Adam, and read batches in the same order; in bfloat16 the peers have torch's autocast. Each has a
process of its own, set up as its users would have it, and they take turns, so that a change in the machine's speed
meets all. Only real target tokens are counted. `limit` is what the machine's matrix products alone would allow: those
of a step, of the same shapes, and nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import platform
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from rich.table import Table

MODELS = {"tiny": "tiny", "base": "paper-base"}
ROUNDS = 4
PEERS = ("regard", "torch.nn.Transformer", "Hugging Face Marian", "limit")
PRECISIONS = ("bfloat16", "float32")
Name = tuple[str, str]
"""An implementation, and what its products are computed in."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="of each round")
    parser.add_argument("--only", choices=PEERS, nargs="+")
    parser.add_argument("--precisions", choices=PRECISIONS, nargs="+", default=PRECISIONS)
    options = parser.parse_args()
    names = [(name, each) for name in options.only or PEERS if available(name) for each in options.precisions]
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        options.files = corpus(options)
        results = compete(names, options)
    title = (
        f"{options.model}, vocabulary {options.vocabulary:,}, {options.tokens} tokens a batch, "
        f"{platform.machine()}, {options.threads} threads"
    )
    first = f"{', '.join(names[0])} / it"
    table = Table("implementation", "products in", "target tokens/s", first, "peak GiB", title=title)
    for name, (rate, peak) in results.items():
        table.add_row(*name, f"{rate:,.0f}", f"{results[names[0]][0] / rate:.2f}", f"{peak:.2f}")
    Console(width=110).print(table)


def compete(names: list[Name], options: argparse.Namespace) -> dict[Name, tuple[float, float]]:
    """Each implementation's tokens a second over all rounds, taking turns, and its process's peak of memory."""
    context = multiprocessing.get_context("spawn")
    channels: dict[Name, Connection] = {}
    for name in names:
        os.environ.update(OURS if name[0] == "regard" else {})
        channels[name], theirs = context.Pipe()
        context.Process(target=take_part, args=(name, options, theirs), daemon=True).start()
        for variable in OURS:
            os.environ.pop(variable, None)
        channels[name].recv()  # warm
    totals = dict.fromkeys(names, (0, 0.0))
    for _ in range(ROUNDS):
        for name, channel in channels.items():
            channel.send(options.steps)
            tokens, seconds = channel.recv()
            totals[name] = totals[name][0] + tokens, totals[name][1] + seconds
    results = {}
    for name, channel in channels.items():
        channel.send(0)
        results[name] = totals[name][0] / totals[name][1], channel.recv()
    return results


OURS = {"GOMP_SPINCOUNT": "3000", "THP_MEM_ALLOC_ENABLE": "1"}
"""What the command `regard` sets for its process."""


def take_part(named: Name, options: argparse.Namespace, channel: Connection) -> None:
    """One implementation in its process: so many steps whenever told."""
    import torch

    from regard.data.batches import Batch, Batches, BatchSettings
    from regard.data.binarise import binarise
    from regard.data.corpus import open_pairs
    from regard.data.dataset import PairDataset
    from regard.data.learn import learn_tokenizers
    from regard.model.presets import preset
    from regard.text.vocabulary import TokenizerSettings

    torch.set_num_threads(options.threads)
    tokenizers = learn_tokenizers(lambda: open_pairs(*options.files), TokenizerSettings(size=options.vocabulary))
    name, precision = named
    path = options.folder / f"{PEERS.index(name)}-{precision}.arrow"
    binarise(open_pairs(*options.files), tokenizers, path)
    batches = Batches(PairDataset.open(path, tokenizers), BatchSettings(tokens=options.tokens))
    import training_peers

    # Sinusoids, because that is what the peers have.
    settings = preset(MODELS[options.model]).model.model_copy(update={"positions": "sinusoidal"})
    step: Callable[[Batch], None] = training_peers.PEERS[name](settings, tokenizers.source.size, batches, precision)
    stream = forever(batches)
    for batch in islice(stream, 2):
        step(batch)
    channel.send(None)
    while count := channel.recv():
        chosen = list(islice(stream, count))
        begin = time.perf_counter()
        for batch in chosen:
            step(batch)
        channel.send((sum(batch.target_tokens for batch in chosen), time.perf_counter() - begin))
    channel.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def forever(batches: Batches) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


def available(name: str) -> bool:
    return name != "Hugging Face Marian" or importlib.util.find_spec("transformers") is not None


def corpus(options: argparse.Namespace) -> tuple[Path, Path]:
    """The files given, or files made up."""
    if options.source is not None:
        return options.source, options.target
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghijklmnoprstuvwz", k=generator.randint(2, 9))) for _ in range(6000)]
    weights = [1 / rank for rank in range(1, 6001)]
    paths = options.folder / "source", options.folder / "target"
    for path in paths:
        lines = (" ".join(generator.choices(words, weights, k=generator.randint(6, 18))) for _ in range(20_000))
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


if __name__ == "__main__":
    main()
