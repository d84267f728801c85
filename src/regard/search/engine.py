"""An iterator of texts in, an iterator of translations out, in the same order.

What goes wrong with one input costs that input only: it is reported with its number, and the others do not notice.
Shapes: B batch, S source positions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.model.interface import SequenceToSequence
from regard.search.beam import Hypothesis, beam_search, length_penalty
from regard.search.decoder import CachedDecoder
from regard.search.growth import Growing, choose_step_by_step
from regard.search.inputs import encode_or_replace
from regard.search.processors import Ban
from regard.search.sampling import Sampling
from regard.search.settings import SamplingSettings, SearchSettings
from regard.search.windows import batches, side_by_side, windows
from regard.text.tokenizer import TokenizerPair

log = logging.getLogger("regard")

WINDOW = 1024
"""So many inputs are sorted by length at a time."""


@dataclass(frozen=True)
class Candidate(Hypothesis):
    """A hypothesis and its text."""

    text: str


@dataclass(frozen=True)
class Translation:
    """What became of one input."""

    candidates: tuple[Candidate, ...]
    """Best first; at least one."""
    shortened: bool = False
    """Whether the input was longer than the model can read, and its end was left out."""

    @property
    def best(self) -> Candidate:
        return self.candidates[0]


NOTHING = Translation((Candidate(ids=(), log_probability=0.0, score=0.0, finished=True, text=""),))
"""The translation of a line without text, for which no model is asked."""


def translate(
    model: SequenceToSequence,
    tokenizers: TokenizerPair,
    texts: Iterable[str],
    settings: SearchSettings,
    *,
    sampling: SamplingSettings | None = None,
    patience: float | None = None,
    workers: int = 1,
    name: str = "input",
) -> Iterator[Translation]:
    """Translate texts, in order, about a thousand at a time sorted by length into batches.

    The model must be in evaluation mode. Nothing is stored on it, so several threads may translate with one model.

    Args:
        sampling: draw one output for each text, token by token, instead of searching for the best.
        patience: what has arrived is translated when nothing more has come for so many seconds (see `windows`);
            without it, texts are always taken about a thousand at a time.
        workers: so many threads translate batches at once (see `side_by_side`).
        name: stands in warnings before the number of the line.

    Raises:
        JobError: the model gives NaN or infinite scores.
    """
    first = 1
    for window in windows(texts, WINDOW, patience):
        yield from _translate_window(model, tokenizers, window, settings, sampling, workers, f"{name}, line", first)
        first += len(window)


def _translate_window(
    model: SequenceToSequence,
    tokenizers: TokenizerPair,
    texts: list[str],
    settings: SearchSettings,
    sampling: SamplingSettings | None,
    workers: int,
    name: str,
    first: int,
) -> list[Translation]:
    translations = [NOTHING] * len(texts)
    filled = [place for place, text in enumerate(texts) if text.strip()]
    names = [f"{name} {first + place}" for place in filled]
    sources = encode_or_replace(tokenizers.source, [texts[place] for place in filled], names)
    frame = len(tokenizers.source_begin) + len(tokenizers.source_end)
    reach = model.settings.source_reach - frame
    shortened = [len(source) > reach for source in sources]
    for line, source in zip(names, sources, strict=True):
        if len(source) > reach:
            log.warning(
                "%s: has %d tokens, of which the model can read %d; the rest is not translated: split the line",
                line,
                len(source),
                reach,
            )
    sources = [source[:reach] for source in sources]
    rows = 1 if sampling is not None else settings.beam
    planned = list(batches([len(source) + frame for source in sources], settings.batch_tokens // rows))

    def search(batch: list[int]) -> list[tuple[Candidate, ...]]:
        chosen = [sources[index] for index in batch]
        if sampling is not None:
            return _draw(model, tokenizers, chosen, settings, sampling)
        return _search(model, tokenizers, chosen, settings)

    for batch, found in zip(planned, side_by_side(search, planned, workers), strict=True):
        for index, candidates in zip(batch, found, strict=True):
            translations[filled[index]] = Translation(candidates, shortened[index])
    return translations


def _search(
    model: SequenceToSequence, tokenizers: TokenizerPair, sources: Sequence[list[int]], settings: SearchSettings
) -> list[tuple[Candidate, ...]]:
    device = next(model.parameters()).device
    *forced, begin = tokenizers.target_begin
    longest = model.settings.max_length - len(forced)
    with torch.inference_mode():
        decoder = CachedDecoder(model, *pad_sources(tokenizers, sources, device), forced)
        found = beam_search(
            decoder,
            [min(len(source) + settings.extra_tokens, longest) for source in sources],
            settings,
            begin=begin,
            end=tokenizers.target_end,
            processors=[Ban(tokenizers.target.forbidden, device)],
            device=device,
        )
    return [tuple(_candidate(hypothesis, tokenizers) for hypothesis in hypotheses) for hypotheses in found]


def _draw(
    model: SequenceToSequence,
    tokenizers: TokenizerPair,
    sources: Sequence[list[int]],
    settings: SearchSettings,
    sampling: SamplingSettings,
) -> list[tuple[Candidate, ...]]:
    """One output for each source, its chances a function of the seed and the source alone."""
    device = next(model.parameters()).device
    *forced, begin = tokenizers.target_begin
    longest = model.settings.max_length - len(forced)
    texts = [
        Growing(
            min(len(source) + settings.extra_tokens, longest),
            random=Random() if sampling.seed is None else Random(f"{sampling.seed} {source}"),
        )
        for source in sources
    ]
    begin_B1 = torch.full((len(sources), 1), begin, device=device)
    with torch.inference_mode():
        decoder = CachedDecoder(model, *pad_sources(tokenizers, sources, device), forced)
    steps = choose_step_by_step(
        decoder,
        begin_B1,
        texts,
        Sampling(sampling),
        end=tokenizers.target_end,
        processors=[Ban(tokenizers.target.forbidden, device)],
    )
    for _ in steps:
        pass
    found: list[tuple[Candidate, ...]] = []
    for text in texts:
        finished = text.stopped == "end"
        score = text.log_probability / length_penalty(len(text.ids) + finished, settings.alpha)
        hypothesis = Hypothesis(tuple(text.ids), text.log_probability, score, finished)
        found.append((_candidate(hypothesis, tokenizers),))
    return found


def _candidate(hypothesis: Hypothesis, tokenizers: TokenizerPair) -> Candidate:
    (text,) = tokenizers.target.decode([list(hypothesis.ids)])
    return Candidate(**vars(hypothesis), text=text)


def pad_sources(
    tokenizers: TokenizerPair, sources: Sequence[list[int]], device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Each source with what stands around it as a row of ids, padded at its end, and which positions are real."""
    framed = [[*tokenizers.source_begin, *source, *tokenizers.source_end] for source in sources]
    return pad(framed, tokenizers.source.pad, device)


def pad(
    lines: Sequence[list[int]], padding: int, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Each line as a row of ids, padded at its end, and which positions are real."""
    length = max(map(len, lines))
    ids_BS = torch.tensor([[*line, *[padding] * (length - len(line))] for line in lines], device=device)
    lengths_B = torch.tensor([len(line) for line in lines], device=device)
    return ids_BS, torch.arange(length, device=device) < lengths_B[:, None]
