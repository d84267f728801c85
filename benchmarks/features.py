"""What each way of searching costs, relative to plain beam search with the same model, in turns.

    python benchmarks/features.py --model DIR --source FILE --reference FILE [--sentences 300] [--rounds 3]

Wishes come from the references: an output begins with the first two words of its reference, holds its longest word, or
that or another one; what is forbidden is the longest word of the plain output. An ensemble is the model twice. The last
column counts texts whose first output is not that of plain beam search.
"""

from __future__ import annotations

import argparse
import copy
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import regard
from regard.pipelines import Translator
from regard.search.requests import Request
from regard.search.settings import SamplingSettings

Run = Callable[[], Sequence[str]]
"""Translates all texts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources, references = (
        path.read_text(encoding="utf-8").split("\n")[: options.sentences]
        for path in (options.source, options.reference)
    )
    features = dict(ways(regard.load(options.model, device="cpu"), sources, references, options.beam))
    seconds: dict[str, list[float]] = {name: [] for name in features}
    outputs: dict[str, Sequence[str]] = {}
    for _ in range(1 + options.rounds):
        for name, run in features.items():
            begin = time.perf_counter()
            outputs[name] = run()
            seconds[name].append(time.perf_counter() - begin)
    show(seconds, outputs, len(sources), options)


def ways(translator: Translator, sources: list[str], references: list[str], beam: int) -> Iterator[tuple[str, Run]]:
    """All features, the plain search first."""

    def search(texts: Sequence[str | Request] = sources, by: Translator = translator, **settings: object) -> Run:
        return lambda: by.translate(texts, **{"beam": beam, **settings})

    def draw(n: int = 1, mbr: str | None = None, **sampling: float) -> Run:
        return search(sampling=SamplingSettings(seed=1, n=n, **sampling), mbr=mbr)

    def using(**changes: Any) -> Run:
        return search(by=copy.copy(translator).use(**changes))

    plain = translator.translate(sources, beam=beam)
    longest = [max(text.split() or ["a"], key=len) for text in references]
    pairs = list(zip(sources, longest, strict=True))
    begins = [" ".join(text.split()[:2]) + " " for text in references]
    unwanted = [max(text.split() or ["a"], key=len) for text in plain]
    yield f"beam {beam}", search()
    yield "greedy", search(beam=1)
    yield f"best {beam} of the beam", search(nbest=beam)
    yield "length control (ratios 0.5 to 2)", search(min_ratio=0.5, max_ratio=2.0)
    yield "no 3-gram twice", search(no_repeat=3)
    yield "coverage 0.2", search(coverage=0.2)
    yield f"diverse, {beam} groups", search(groups=beam, diversity=0.5)
    yield "prefix", search([Request(text, prefix=words) for text, words in zip(sources, begins, strict=True)])
    yield (
        "a forbidden word",
        search([Request(text, forbid=[word]) for text, word in zip(sources, unwanted, strict=True)]),
    )
    yield "a word that must come", search([Request(text, must=[word]) for text, word in pairs])
    yield "or another one", search([Request(text, must=[[word, "und"]]) for text, word in pairs])
    yield "sampling", draw()
    yield "sampling, top-k 50", draw(top_k=50)
    yield "sampling, top-p 0.9", draw(top_p=0.9)
    yield "sampling, min-p 0.05", draw(min_p=0.05)
    yield "sampling, epsilon 0.02", draw(epsilon=0.02)
    yield f"Bayes risk (chrF) of the {beam}", search(mbr="chrf", nbest=1)
    yield "Bayes risk (chrF) of 16 samples", draw(16, "chrf")
    yield "Bayes risk (BLEU) of 16 samples", draw(16, "bleu")
    yield "ensemble of 2", search(by=copy.copy(translator).together(translator))
    yield "scoring of the outputs", lambda: [str(each) for each in translator.score(sources, plain)]
    yield "alignment of the outputs", lambda: [str(each) for each in translator.align(sources, plain)]
    yield "no second search for trouble", search(retry=False)
    yield "the whole vocabulary", using(shortlist=False)
    yield "float32", using(precision="float32")
    yield "PyTorch", using(executor="torch")
    yield "invariant", using(invariant=True)
    yield "PyTorch, invariant", using(executor="torch", invariant=True)


def show(
    seconds: dict[str, list[float]], outputs: dict[str, Sequence[str]], count: int, options: argparse.Namespace
) -> None:
    """Medians over the rounds but for the first, which warms up."""
    plain, *_ = seconds
    table = Table(
        *("way", "sentences/s", "time, relative", "outputs that differ"),
        title=f"{options.model}, {count} sentences, one thread, {platform.machine()}",
    )
    for name, times in seconds.items():
        relative = median(own / other for own, other in zip(times[1:], seconds[plain][1:], strict=True))
        differing = sum(one != other for one, other in zip(outputs[name], outputs[plain], strict=True))
        measures = name.startswith(("scoring", "alignment"))
        table.add_row(name, f"{count / median(times[1:]):,.0f}", f"{relative:.2f}", "" if measures else f"{differing}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
