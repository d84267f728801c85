"""What recurrence costs: Transformer, LSTM and convolution of one size, by the length of the sequences.

    python benchmarks/recurrence.py [--model tiny] [--lengths 16 64 256] [--tokens 2048] [--threads 2]

For each length: milliseconds of one training step on a batch of random tokens, and of one step of greedy search after
an output of that length (every cache keeps all positions, so that it can be trimmed). The models take turns, and the
fastest of some rounds counts, so that a change in the machine's speed meets all. What quality each reaches is measured
by `regard experiment baselines`.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard.experiments.contenders import ContendersSettings, contenders
from regard.runs.tasks import resolve
from regard.search.decoder import CachedDecoder
from regard.training.loss import cross_entropy

ROUNDS, STEPS, SOURCES = 3, 8, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="a preset")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size, longest = options.vocabulary, max(options.lengths)
    recipe = {"preset": options.model, "model": {"max_length": longest + STEPS}}
    data = {"train": {"source": "none"}, "max_length": longest}
    settings = resolve({**recipe, "data": data}, "benchmark")
    models = {each.name: each.build(size, size) for each in contenders(settings, ContendersSettings(), (size, size))}
    count = sum(parameter.numel() for parameter in models["transformer"].parameters())
    table = Table(
        "length",
        *(f"{name}: {what}" for what in ("training", "search") for name in models),
        title=f"ms a step; {count / 1e6:.1f}M parameters, {options.tokens} tokens a batch, {SOURCES} sources searched, "
        f"{platform.machine()}, {options.threads} threads",
    )
    for length in options.lengths:
        ids_BT = torch.randint(4, size, (max(1, options.tokens // length), length))
        training = compete({name: training_step(model, ids_BT) for name, model in models.items()})
        sources_BS = torch.randint(4, size, (SOURCES, length))
        search = compete({name: search_steps(model, sources_BS) for name, model in models.items()})
        table.add_row(
            str(length),
            *(f"{1000 * seconds:.0f}" for seconds in training.values()),
            *(f"{1000 * seconds / STEPS:.1f}" for seconds in search.values()),
        )
    Console(width=130).print(table)


def compete(steps: dict[str, Callable[[], float]]) -> dict[str, float]:
    """The least of some rounds in seconds, after one that does not count."""
    rounds = [{name: step() for name, step in steps.items()} for _ in range(ROUNDS + 1)]
    return {name: min(seconds[name] for seconds in rounds[1:]) for name in steps}


def training_step(model: nn.Module, ids_BT: Tensor) -> Callable[[], float]:
    """Forwards and backwards; what the optimizer does depends on the parameters alone."""
    keys_BT = torch.ones_like(ids_BT, dtype=torch.bool)

    def step() -> float:
        model.train()
        begin = time.perf_counter()
        hidden_BTD = model(ids_BT, keys_BT, ids_BT)
        loss, _ = cross_entropy(hidden_BTD.flatten(0, 1), model.output, ids_BT.flatten(), 0.1)
        loss.backward()
        model.zero_grad()
        return time.perf_counter() - begin

    return step


def search_steps(model: nn.Module, sources_BS: Tensor) -> Callable[[], float]:
    """Some steps after an output as long as the source."""
    keys_BS = torch.ones_like(sources_BS, dtype=torch.bool)

    def steps() -> float:
        model.eval()
        with torch.inference_mode():
            decoder = CachedDecoder(model, sources_BS, keys_BS, forced=sources_BS[0].tolist())
            begin = time.perf_counter()
            tokens_B = sources_BS[:, -1]
            for _ in range(STEPS):
                tokens_B = decoder.step(tokens_B).argmax(dim=-1)
            return time.perf_counter() - begin

    return steps


if __name__ == "__main__":
    main()
