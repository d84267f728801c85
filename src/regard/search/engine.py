"""An iterator of texts in, an iterator of translations out, in the same order.

What goes wrong with one input costs that input only: it is reported with its number, and the others do not notice.
Shapes: B batch, S source positions, N sources, R rows of a search.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import ceil, exp
from random import Random

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.model.interface import SequenceToSequence
from regard.search.bayes import Utility, expected_utilities
from regard.search.beam import BeamSearch, Hypothesis, beam_search, length_penalty, rank
from regard.search.choices import Choices
from regard.search.constraints import Begin, Forbid, Must
from regard.search.coverage import CoverageReader
from regard.search.decoder import Chooser, Decoder
from regard.search.executors import Executor, TorchExecutor, pad
from regard.search.growth import Growing, choose_step_by_step
from regard.search.inputs import encode_or_replace
from regard.search.processors import Ban, MinimumLength, NoRepeat, Processor
from regard.search.requests import Request, Wishes
from regard.search.sampling import Sampling
from regard.search.selection import Banks, Diverse, MostProbable, Selection
from regard.search.settings import SamplingSettings, SearchSettings
from regard.search.spelling import phrase, spelling
from regard.search.windows import batches, side_by_side, windows
from regard.text.tokenizer import TokenizerPair

log = logging.getLogger("regard")

WINDOW = 1024
"""So many inputs are sorted by length at a time."""

JOIN = 8
"""Sources wait until this share (one in so many) of the places is free."""

PLACES = 64
"""Sources searched at once where they may join: with more, products are no faster, and what is kept of a small model's
sources leaves the processor's cache."""


@dataclass(frozen=True)
class Candidate(Hypothesis):
    """A hypothesis and its text."""

    text: str


@dataclass(frozen=True)
class Translation:
    """What became of one input."""

    candidates: tuple[Candidate, ...]
    """Best first, or as they were drawn; at least one."""
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
    texts: Iterable[str | Request],
    settings: SearchSettings,
    *,
    sampling: SamplingSettings | None = None,
    utility: Utility | None = None,
    readers: Sequence[SequenceToSequence] = (),
    patience: float | None = None,
    workers: int = 1,
    name: str = "input",
) -> Iterator[Translation]:
    """Translate texts, in order, about a thousand at a time sorted by length.

    The model must be in evaluation mode. Nothing is stored on it, so several threads may translate with one model.

    Args:
        model: a model, which PyTorch carries out, or what else carries one out (`regard.search.executors`).
        texts: a `Request` is a text with wishes about its output.
        sampling: draw outputs for each text, token by token, instead of searching for the best.
        utility: of what was found, that is best which has the highest expected utility (minimum Bayes risk), instead of
            the highest score. What was drawn counts as often as it was, what a beam found by its probability.
        readers: the models, for `settings.coverage`, where `model` is an executor.
        patience: what has arrived is translated when nothing more has come for so many seconds (see `windows`);
            without it, texts are always taken about a thousand at a time.
        workers: so many threads translate at once (see `side_by_side`).
        name: stands in warnings before the number of the line.

    Raises:
        UserError: the vocabulary has no tokens for something that must be said; or there is no attention for coverage.
        JobError: the model gives NaN or infinite scores.
    """
    executor = model if isinstance(model, Executor) else TorchExecutor(model)
    if not isinstance(model, Executor):
        readers = (model,)
    engine = _Engine(executor, tokenizers, settings, sampling, utility, readers)
    first = 1
    for window in windows(texts, WINDOW, patience):
        yield from engine.window(window, workers, f"{name}, line", first)
        first += len(window)


Candidates = tuple[Candidate, ...]


@dataclass(frozen=True)
class _Source:
    """An input in tokens, with wishes about its output."""

    ids: list[int]
    wishes: Wishes


class _Engine:
    """A model with its tokenizers, and how it is to be searched."""

    def __init__(
        self,
        executor: Executor,
        tokenizers: TokenizerPair,
        settings: SearchSettings,
        sampling: SamplingSettings | None,
        utility: Utility | None,
        readers: Sequence[SequenceToSequence],
    ) -> None:
        self.executor, self.tokenizers = executor, tokenizers
        self.settings, self.sampling = settings, sampling
        self.utility, self.readers = utility, readers
        *self.forced, self.begin = tokenizers.target_begin
        self.end = tokenizers.target_end
        frame = len(tokenizers.source_begin) + len(tokenizers.source_end)
        self.reach = executor.settings.source_reach - frame
        self.longest = executor.settings.max_length - len(self.forced)
        rows = sampling.n if sampling is not None else settings.beam
        self.budget = 0 if executor.alone else settings.batch_tokens // rows
        self.forbidden = tuple(phrase(each, tokenizers.target) for each in settings.forbid)
        beam = settings.beam // settings.groups
        ranked_later = settings.groups > 1 or settings.coverage > 0 or utility is not None
        self.joins = executor.joins and sampling is None and settings.groups == 1 and not self._rules([], [])
        """Whether a decoder may find candidates itself, for sources without wishes."""
        self.search = settings.model_copy(update={"beam": beam, "nbest": beam if ranked_later else settings.nbest})

    def window(self, texts: list[str | Request], workers: int, name: str, first: int) -> list[Translation]:
        """Translate some texts, of which the first has this number in warnings."""
        translations = [NOTHING] * len(texts)
        requests = [text if isinstance(text, Request) else Request(text) for text in texts]
        filled = [place for place, request in enumerate(requests) if request.text.strip()]
        names = [f"{name} {first + place}" for place in filled]
        encoded = encode_or_replace(self.tokenizers.source, [requests[place].text for place in filled], names)
        shortened = [len(source) > self.reach for source in encoded]
        for line, source in zip(names, encoded, strict=True):
            if len(source) > self.reach:
                log.warning(
                    "%s: has %d tokens, of which the model can read %d; the rest is not translated: split the line",
                    line,
                    len(source),
                    self.reach,
                )
        wishes = [Wishes.of(requests[place], self.tokenizers.target) for place in filled]
        sources = [_Source(ids[: self.reach], wish) for ids, wish in zip(encoded, wishes, strict=True)]
        found = self._found(sources, workers)
        if self.settings.coverage:
            found = self._covered(sources, found, workers)
        for place, cut, hypotheses in zip(filled, shortened, found, strict=True):
            translations[place] = Translation(self._candidates(hypotheses), cut)
        return translations

    def _found(self, sources: list[_Source], workers: int) -> list[list[Hypothesis]]:
        """What is found for each source, best first."""
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index].ids))
        flowing = [index for index in order if self.joins and sources[index].wishes == Wishes()]
        waiting = deque((index, sources[index]) for index in flowing)
        shares = [waiting] * min(workers, len(waiting))
        found = dict(chain.from_iterable(side_by_side(self._flow, shares, workers)))
        planned = self._planned(sources, [index for index in order if index not in found], workers)

        def work(batch: list[int]) -> list[tuple[int, list[Hypothesis]]]:
            chosen = [sources[index] for index in batch]
            return list(zip(batch, self._search(chosen) if self.sampling is None else self._draw(chosen), strict=True))

        found |= dict(chain.from_iterable(side_by_side(work, planned, workers)))
        return [found[index] for index in range(len(sources))]

    def _planned(self, sources: Sequence[_Source], indices: Sequence[int], workers: int) -> list[list[int]]:
        """Batches of sources that are searched in one way, so that nothing of it depends on the others.

        Where there are few sources, each worker gets some.
        """
        ways: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
        for index in indices:
            ways[self._places(sources[index]), sources[index].wishes == Wishes()].append(index)
        planned = []
        for (places, _), alike in ways.items():
            costs = [ceil(len(self._framed(sources[index])) * places / self.search.beam) for index in alike]
            budget = min(self.budget, ceil(sum(costs) / workers))
            planned += [[alike[place] for place in batch] for batch in batches(costs, budget)]
        return planned

    def _flow(self, waiting: deque[tuple[int, _Source]]) -> list[tuple[int, list[Hypothesis]]]:
        """Search for sources that wait, each taking the place of one that is done, so that no row idles."""
        decoder = self.executor.begin([], self.tokenizers.source.pad, self.forced)
        assert isinstance(decoder, Chooser)
        search = BeamSearch(Choices(decoder, [self._ban()]), self.search, self.end, alike=self._alike)
        found: list[tuple[int, list[Hypothesis]]] = []
        indices: list[int] = []
        while True:
            joining = self._next(waiting, len(search.sources))
            if joining:
                indices += [index for index, _ in joining]
                decoder.join([self._framed(source) for _, source in joining])
                search.add(self._limits([source for _, source in joining]), np.full((len(joining), 1), self.begin))
            if not search.sources:
                return found
            found += [(indices[number], hypotheses) for number, hypotheses in search.step()]

    def _next(self, waiting: deque[tuple[int, _Source]], busy: int) -> list[tuple[int, _Source]]:
        """Sources to join those that are searched: some at a time, since an encoder is faster on many."""
        taken: list[tuple[int, _Source]] = []
        try:
            room = max(1, min(PLACES, self.budget // (1 + len(waiting[0][1].ids))))
            while room - busy >= max(1, room // JOIN) and len(taken) < room - busy:
                taken.append(waiting.popleft())
        except IndexError:  # nothing waits any more: other threads take from it too
            pass
        return taken

    def _search(self, inputs: Sequence[_Source]) -> list[list[Hypothesis]]:
        """Beam search for each, of as many places; the groups of a diverse one are searched for side by side."""
        groups = self.settings.groups
        sources = [source for source in inputs for _ in range(groups)]
        limits = self._limits(sources)
        demands = [source.wishes.demand for source in sources]
        wished = self._banks and any(demand.wishes for demand in demands)
        within = Banks(demands) if wished else MostProbable()
        selection: Selection = Diverse(groups, self.settings.diversity, within) if groups > 1 else within
        found = beam_search(
            self._begin(sources),
            limits,
            self.search.model_copy(update={"beam": self._places(inputs[0])}),
            begin=self.begin,
            end=self.end,
            processors=[self._ban(), *self._rules(sources, limits)],
            selection=selection,
            alike=self._alike,
            device=self.executor.device,
        )
        return [list(chain.from_iterable(found[n : n + groups])) for n in range(0, len(found), groups)]

    def _places(self, source: _Source) -> int:
        """Of a beam: one at least for outputs that miss equally much."""
        return max(self.search.beam, 1 + source.wishes.demand.missing(())) if self._banks else self.search.beam

    @property
    def _banks(self) -> bool:
        """Whether a beam is allocated to what outputs must say; a greedy search would say it first of all."""
        return self.sampling is None and self.search.beam > 1

    def _draw(self, inputs: Sequence[_Source]) -> list[list[Hypothesis]]:
        """Outputs for each source, their chances a function of the seed and the source alone."""
        assert self.sampling is not None
        seed, n = self.sampling.seed, self.sampling.n
        sources = [source for source in inputs for _ in range(n)]
        limits = self._limits(sources)
        texts = []
        for place, (source, limit) in enumerate(zip(sources, limits, strict=True)):
            which = f" {place % n}" if place % n else ""
            texts.append(Growing(limit, random=Random() if seed is None else Random(f"{seed} {source.ids}{which}")))
        steps = choose_step_by_step(
            self._begin(sources),
            torch.full((len(sources), 1), self.begin, device=self.executor.device),
            texts,
            Sampling(self.sampling),
            end=self.end,
            processors=[self._ban(), *self._rules(sources, limits)],
        )
        for _ in steps:
            pass
        drawn = list(map(self._grown, texts))
        return [drawn[place : place + n] for place in range(0, len(drawn), n)]

    def _grown(self, text: Growing) -> Hypothesis:
        finished = text.stopped == "end"
        score = text.log_probability / length_penalty(len(text.ids) + finished, self.settings.alpha)
        return Hypothesis(tuple(text.ids), text.log_probability, score, finished)

    def _begin(self, sources: Sequence[_Source]) -> Decoder:
        return self.executor.begin(list(map(self._framed, sources)), self.tokenizers.source.pad, self.forced)

    def _framed(self, source: _Source) -> list[int]:
        return [*self.tokenizers.source_begin, *source.ids, *self.tokenizers.source_end]

    def _limits(self, sources: Sequence[_Source]) -> list[int]:
        """How long each output may become, the end token included. What it has to say is never too long."""
        limits = []
        for source in sources:
            limit = max(self.settings.most(len(source.ids)), source.wishes.tokens + 1)
            limits.append(min(limit, self.longest))
        return limits

    def _ban(self) -> Ban:
        return Ban(self.tokenizers.target.forbidden, self.executor.device)

    def _rules(self, sources: Sequence[_Source], limits: Sequence[int]) -> list[Processor]:
        """What else settings and wishes ask of each next token."""
        rules: list[Processor] = []
        wishes = [source.wishes for source in sources]
        if self.settings.no_repeat:
            rules.append(NoRepeat(self.settings.no_repeat))
        if self.settings.min_tokens or self.settings.min_ratio:
            least = [self.settings.least(len(source.ids)) for source in sources]
            rules.append(MinimumLength(self.end, least, prompt=1))
        if any(each.beginning.ids or each.beginning.rest for each in wishes):
            rules.append(Begin([each.beginning for each in wishes], spelling(self.tokenizers.target)))
        if self.forbidden or any(each.forbidden for each in wishes):
            phrases = [(*self.forbidden, *each.forbidden) for each in wishes]
            rules.append(Forbid(phrases, spelling(self.tokenizers.target)))
        if any(each.demand.wishes for each in wishes):
            demands = [each.demand for each in wishes]
            rules.append(Must(demands, limits, self.end, at_end=not self._banks))
        return rules

    def _alike(self, ids: tuple[int, ...]) -> Hashable:
        """Two ways to write one text are one hypothesis, where more than one is wanted."""
        return ids if self.search.nbest == 1 else self.tokenizers.target.decode([list(ids)])[0]

    def _covered(
        self, sources: Sequence[_Source], found: list[list[Hypothesis]], workers: int
    ) -> list[list[Hypothesis]]:
        """The same with the coverage penalty in their scores."""
        pairs = [(source.ids, each.ids) for source, several in zip(sources, found, strict=True) for each in several]
        if self.executor.alone or self.executor.joins:  # nobody else's outputs may change a bit
            numbers = iter(range(len(pairs)))
            planned = [list(islice(numbers, len(several))) for several in found]
        else:
            costs = [max(len(source), len(output)) + 2 for source, output in pairs]
            planned = list(batches(costs, self.settings.batch_tokens))
        reader = CoverageReader(self.readers, self.tokenizers)

        def read(batch: list[int]) -> list[float]:
            return reader([pairs[index] for index in batch])

        penalties: dict[int, float] = {}
        for batch, values in zip(planned, side_by_side(read, planned, workers), strict=True):
            penalties |= zip(batch, values, strict=True)
        weighted = iter([self.settings.coverage * penalties[index] for index in range(len(pairs))])
        return [[replace(each, score=each.score + next(weighted)) for each in several] for several in found]

    def _candidates(self, hypotheses: Sequence[Hypothesis]) -> Candidates:
        """With their texts, as many as are wanted; or all that were drawn, where none is chosen."""
        texts = self.tokenizers.target.decode([list(hypothesis.ids) for hypothesis in hypotheses])
        candidates = [Candidate(**vars(each), text=text) for each, text in zip(hypotheses, texts, strict=True)]
        if self.sampling is not None and self.utility is None:
            return tuple(candidates)
        candidates.sort(key=rank, reverse=True)
        distinct: dict[str, Candidate] = {}
        for candidate in candidates:
            distinct.setdefault(candidate.text, candidate)
        candidates = list(distinct.values())
        if self.utility is not None:
            weights = self._weights(candidates, Counter(texts))
            expected = expected_utilities(list(distinct), weights, self.utility)
            order = sorted(range(len(candidates)), key=lambda place: -expected[place])
            candidates = [candidates[place] for place in order]
        return tuple(candidates[: self.settings.nbest])

    def _weights(self, candidates: Sequence[Candidate], counts: Counter[str]) -> list[float]:
        """How probable each is: as often as it was drawn, or as the model says of what a search found."""
        if self.sampling is not None:
            return [float(counts[candidate.text]) for candidate in candidates]
        most = max(candidate.log_probability for candidate in candidates)
        return [exp(candidate.log_probability - most) for candidate in candidates]


def pad_sources(
    tokenizers: TokenizerPair, sources: Sequence[list[int]], device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Each source with what stands around it as a row of ids, padded at its end, and which positions are real."""
    framed = [[*tokenizers.source_begin, *source, *tokenizers.source_end] for source in sources]
    return pad(framed, tokenizers.source.pad, device)
