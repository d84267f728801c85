"""An iterator of texts in, an iterator of translations out, in the same order.

What goes wrong with one input costs that input only: it is reported with its number, and the others do not notice.
Shapes: B batch, S source positions, N sources, R rows of a search.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.model.interface import SequenceToSequence
from regard.search.beam import BeamSearch, Hypothesis, beam_search, length_penalty
from regard.search.choices import Choices
from regard.search.decoder import Chooser, Decoder
from regard.search.executors import Executor, TorchExecutor, pad
from regard.search.growth import Growing, choose_step_by_step
from regard.search.inputs import encode_or_replace
from regard.search.processors import Ban, MinimumLength, NoRepeat, Processor
from regard.search.sampling import Sampling
from regard.search.settings import SamplingSettings, SearchSettings
from regard.search.windows import batches, side_by_side, windows
from regard.text.tokenizer import TokenizerPair

log = logging.getLogger("regard")

WINDOW = 1024
"""So many inputs are sorted by length at a time."""

JOIN = 8
"""Sources wait until this share (one in so many) of the places is free."""


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
    model: SequenceToSequence | Executor,
    tokenizers: TokenizerPair,
    texts: Iterable[str],
    settings: SearchSettings,
    *,
    sampling: SamplingSettings | None = None,
    patience: float | None = None,
    workers: int = 1,
    name: str = "input",
) -> Iterator[Translation]:
    """Translate texts, in order, about a thousand at a time sorted by length.

    The model must be in evaluation mode. Nothing is stored on it, so several threads may translate with one model.

    Args:
        model: a model, which PyTorch carries out, or what else carries one out (`regard.search.executors`).
        sampling: draw one output for each text, token by token, instead of searching for the best.
        patience: what has arrived is translated when nothing more has come for so many seconds (see `windows`);
            without it, texts are always taken about a thousand at a time.
        workers: so many threads translate at once (see `side_by_side`).
        name: stands in warnings before the number of the line.

    Raises:
        JobError: the model gives NaN or infinite scores.
    """
    executor = model if isinstance(model, Executor) else TorchExecutor(model)
    engine = _Engine(executor, tokenizers, settings, sampling)
    first = 1
    for window in windows(texts, WINDOW, patience):
        yield from engine.window(window, workers, f"{name}, line", first)
        first += len(window)


Candidates = tuple[Candidate, ...]


class _Engine:
    """A model with its tokenizers, and how it is to be searched."""

    def __init__(
        self,
        executor: Executor,
        tokenizers: TokenizerPair,
        settings: SearchSettings,
        sampling: SamplingSettings | None,
    ) -> None:
        self.executor, self.tokenizers = executor, tokenizers
        self.settings, self.sampling = settings, sampling
        *self.forced, self.begin = tokenizers.target_begin
        self.end = tokenizers.target_end
        frame = len(tokenizers.source_begin) + len(tokenizers.source_end)
        self.reach = executor.settings.source_reach - frame
        self.longest = executor.settings.max_length - len(self.forced)
        self.budget = settings.batch_tokens // (1 if sampling is not None else settings.beam)

    def window(self, texts: list[str], workers: int, name: str, first: int) -> list[Translation]:
        """Translate some texts, of which the first has this number in warnings."""
        translations = [NOTHING] * len(texts)
        filled = [place for place, text in enumerate(texts) if text.strip()]
        names = [f"{name} {first + place}" for place in filled]
        sources = encode_or_replace(self.tokenizers.source, [texts[place] for place in filled], names)
        shortened = [len(source) > self.reach for source in sources]
        for line, source in zip(names, sources, strict=True):
            if len(source) > self.reach:
                log.warning(
                    "%s: has %d tokens, of which the model can read %d; the rest is not translated: split the line",
                    line,
                    len(source),
                    self.reach,
                )
        found = self._found([source[: self.reach] for source in sources], workers)
        for place, cut, candidates in zip(filled, shortened, found, strict=True):
            translations[place] = Translation(candidates, cut)
        return translations

    def _found(self, sources: list[list[int]], workers: int) -> list[Candidates]:
        """The candidates for each source."""
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        if self.executor.joins and self.sampling is None and not self._rules():
            waiting = deque((index, sources[index]) for index in order)
            shares = [waiting] * min(workers, len(waiting))
            results = (each for share in side_by_side(self._flow, shares, workers) for each in share)
        else:
            costs = [len(self._framed(source)) for source in sources]
            planned = list(batches(costs, self.budget))

            def work(batch: list[int]) -> list[tuple[int, Candidates]]:
                chosen = [sources[index] for index in batch]
                return list(
                    zip(batch, self._search(chosen) if self.sampling is None else self._draw(chosen), strict=True)
                )

            results = (each for batch in side_by_side(work, planned, workers) for each in batch)
        found = dict(results)
        return [found[index] for index in range(len(sources))]

    def _flow(self, waiting: deque[tuple[int, list[int]]]) -> list[tuple[int, Candidates]]:
        """Search for sources that wait, each taking the place of one that is done, so that no row idles."""
        decoder = self.executor.begin([], self.tokenizers.source.pad, self.forced)
        assert isinstance(decoder, Chooser)
        search = BeamSearch(Choices(decoder, [self._ban()]), self.settings, end=self.end)
        found: list[tuple[int, Candidates]] = []
        indices: list[int] = []
        while True:
            joining = self._next(waiting, len(search.sources))
            if joining:
                indices += [index for index, _ in joining]
                decoder.join([self._framed(source) for _, source in joining])
                search.add(self._limits([source for _, source in joining]), np.full((len(joining), 1), self.begin))
            if not search.sources:
                return found
            found += [(indices[number], self._candidates(hypotheses)) for number, hypotheses in search.step()]

    def _next(self, waiting: deque[tuple[int, list[int]]], busy: int) -> list[tuple[int, list[int]]]:
        """Sources to join those that are searched: some at a time, since an encoder is faster on many."""
        taken: list[tuple[int, list[int]]] = []
        try:
            room = max(1, self.budget // (1 + len(waiting[0][1])))
            while room - busy >= max(1, room // JOIN) and len(taken) < room - busy:
                taken.append(waiting.popleft())
        except IndexError:  # nothing waits any more: other threads take from it too
            pass
        return taken

    def _search(self, sources: Sequence[list[int]]) -> list[Candidates]:
        found = beam_search(
            self._begin(sources),
            self._limits(sources),
            self.settings,
            begin=self.begin,
            end=self.end,
            processors=[self._ban(), *self._rules()],
            device=self.executor.device,
        )
        return list(map(self._candidates, found))

    def _draw(self, sources: Sequence[list[int]]) -> list[Candidates]:
        """One output for each source, its chances a function of the seed and the source alone."""
        assert self.sampling is not None
        seed = self.sampling.seed
        texts = [
            Growing(limit, random=Random() if seed is None else Random(f"{seed} {source}"))
            for source, limit in zip(sources, self._limits(sources), strict=True)
        ]
        steps = choose_step_by_step(
            self._begin(sources),
            torch.full((len(sources), 1), self.begin, device=self.executor.device),
            texts,
            Sampling(self.sampling),
            end=self.end,
            processors=[self._ban(), *self._rules()],
        )
        for _ in steps:
            pass
        return [self._candidates([self._grown(text)]) for text in texts]

    def _grown(self, text: Growing) -> Hypothesis:
        finished = text.stopped == "end"
        score = text.log_probability / length_penalty(len(text.ids) + finished, self.settings.alpha)
        return Hypothesis(tuple(text.ids), text.log_probability, score, finished)

    def _begin(self, sources: Sequence[list[int]]) -> Decoder:
        return self.executor.begin(list(map(self._framed, sources)), self.tokenizers.source.pad, self.forced)

    def _framed(self, source: list[int]) -> list[int]:
        return [*self.tokenizers.source_begin, *source, *self.tokenizers.source_end]

    def _limits(self, sources: Sequence[list[int]]) -> list[int]:
        """How long each output may become."""
        return [min(len(source) + self.settings.extra_tokens, self.longest) for source in sources]

    def _ban(self) -> Ban:
        return Ban(self.tokenizers.target.forbidden, self.executor.device)

    def _rules(self) -> list[Processor]:
        """What else the settings ask of each next token."""
        rules: list[Processor] = []
        if self.settings.no_repeat:
            rules.append(NoRepeat(self.settings.no_repeat))
        if self.settings.min_tokens:
            rules.append(MinimumLength(self.end, self.settings.min_tokens, prompt=1))
        return rules

    def _candidates(self, hypotheses: Sequence[Hypothesis]) -> Candidates:
        texts = self.tokenizers.target.decode([list(hypothesis.ids) for hypothesis in hypotheses])
        return tuple(Candidate(**vars(each), text=text) for each, text in zip(hypotheses, texts, strict=True))


def pad_sources(
    tokenizers: TokenizerPair, sources: Sequence[list[int]], device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Each source with what stands around it as a row of ids, padded at its end, and which positions are real."""
    framed = [[*tokenizers.source_begin, *source, *tokenizers.source_end] for source in sources]
    return pad(framed, tokenizers.source.pad, device)
