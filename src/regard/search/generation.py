"""An iterator of prompts in, an iterator of what the model continued them with out, in the same order.

Each text is a function of the model, its prompt, the settings and the seed: what else is in a batch does not matter.
Shapes: B prompts of a batch, R rows (several texts of a prompt side by side), T tokens of the longest prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import UserError
from regard.model.cache import Bound
from regard.model.transformer import CausalDecoder
from regard.search.beam import Hypothesis, beam_search
from regard.search.decoder import CachedText
from regard.search.growth import Growing, Stopped, choose_step_by_step, contrast_step_by_step
from regard.search.inputs import encode_or_replace, fill_left
from regard.search.processors import NOTHING, Ban, MinimumLength, NoRepeat, Processor, RepetitionPenalty
from regard.search.sampling import Sampling
from regard.search.settings import GenerationSettings, SearchSettings
from regard.search.stops import StopReader
from regard.search.windows import batches, side_by_side, windows
from regard.text.tokenizer import Tokenizer

log = logging.getLogger("regard")

WINDOW = 256
"""So many prompts are sorted by length at a time."""


@dataclass(frozen=True)
class Continuation:
    """A text that follows a prompt."""

    text: str
    """What follows the prompt, which is not repeated; without the stop string that ended it."""
    ids: tuple[int, ...]
    """Its tokens, those of a stop string included, without the end token."""
    log_probability: float
    """Natural logarithm of its probability under the model, the end token included if it has one."""
    stopped: Stopped | Literal["refused"]
    """Why it stopped; "refused": the prompt was longer than the model can read, and there is no text."""

    @property
    def finished(self) -> bool:
        """Whether it is complete, and not cut by a limit."""
        return self.stopped in ("end", "stop")


@dataclass(frozen=True)
class Generation:
    """What became of one prompt."""

    prompt: str
    continuations: tuple[Continuation, ...]
    """As many as were asked for (`n`); from beam search the best first."""

    @property
    def best(self) -> Continuation:
        """The first, or only, one."""
        return self.continuations[0]


REFUSED = Continuation("", (), 0.0, "refused")


def generate(
    model: CausalDecoder,
    tokenizer: Tokenizer,
    prompts: Iterable[str],
    settings: GenerationSettings,
    *,
    patience: float | None = None,
    workers: int = 1,
    name: str = "input",
) -> Iterator[Generation]:
    """Continue prompts, in order, some hundred at a time sorted by length into batches.

    The model must be in evaluation mode. Nothing is stored on it, so several threads may use one model.

    Args:
        patience: prompts that have arrived are continued when no more have come for so many seconds (see `windows`).
        workers: so many threads work on batches at once (see `side_by_side`).
        name: stands in warnings before the number of the line.

    Raises:
        UserError: the settings do not fit the model.
        JobError: the model gives NaN or infinite scores.
    """
    writer = Writer(model, tokenizer, settings)
    first = 1
    for window in windows(prompts, WINDOW, patience):
        yield from writer.window(window, [f"{name}, line {first + place}" for place in range(len(window))], workers)
        first += len(window)


def stream(
    model: CausalDecoder, tokenizer: Tokenizer, prompt: str, settings: GenerationSettings, name: str = "the prompt"
) -> Iterator[str]:
    """The text that follows one prompt, in pieces as they become certain; together they are the text of `generate`.

    Raises:
        UserError: as `generate`; for beam search, which knows its text at the end only; for several texts; and when
            the prompt is longer than the model can read.
    """
    if settings.beam > 1 or settings.n > 1:
        raise UserError("one text is shown as it grows: leave out " + ("beam" if settings.beam > 1 else "n"))
    return Writer(model, tokenizer, settings).stream(prompt, name)


class Writer:
    """A model, its tokenizer and settings that fit them."""

    def __init__(self, model: CausalDecoder, tokenizer: Tokenizer, settings: GenerationSettings) -> None:
        if settings.n > 1 and settings.deterministic and settings.beam == 1:
            raise UserError(f"n = {settings.n}: all texts would be the same; leave it out or draw with a temperature")
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.device = model.output.device
        self.begin = tokenizer.frames.begin
        self.reach = model.embedding.positions.reach
        self.bound = self._bound() if settings.endless else None
        self.choose = Sampling(settings)

    def _bound(self) -> Bound:
        settings, reach = self.settings, self.reach
        recent = settings.recent or self.model.settings.max_length - settings.sinks
        if recent < 1 or (reach is not None and settings.sinks + recent > reach):
            raise UserError(
                f"sinks = {settings.sinks} and recent = {recent} are more than the model's length of "
                f"{self.model.settings.max_length} tokens; choose less"
            )
        return Bound(settings.sinks, recent)

    def window(self, prompts: list[str], names: list[str], workers: int) -> Iterator[Generation]:
        """Continue some prompts; `names` stand in warnings."""
        ids = self._encode(prompts, names)
        limits = [self.limit(len(each)) for each in ids]
        found: list[tuple[Continuation, ...]] = [(REFUSED,) * self.settings.n] * len(prompts)
        readable = [place for place, limit in enumerate(limits) if limit != 0]
        costs = [self._columns(len(ids[place]), limits[place]) for place in readable]

        def work(batch: list[int]) -> list[tuple[Continuation, ...]]:
            places = [readable[index] for index in batch]
            return self._continue([ids[place] for place in places], [limits[place] for place in places])

        planned = list(batches(costs, self.settings.batch_tokens // self.settings.rows))
        for batch, results in zip(planned, side_by_side(work, planned, workers), strict=True):
            for index, continuations in zip(batch, results, strict=True):
                found[readable[index]] = continuations
        for prompt, name, tokens, limit, continuations in zip(prompts, names, ids, limits, found, strict=True):
            cut = [each.stopped for each in continuations if each.stopped in ("length", "refused")]
            self._warn(name, len(tokens), limit, cut[0] if cut else None)
            yield Generation(prompt, continuations)

    def stream(self, prompt: str, name: str) -> Iterator[str]:
        """The continuation of one prompt, piece by piece."""
        (ids,) = self._encode([prompt], [name])
        limit = self.limit(len(ids))
        if limit == 0:
            raise UserError(self._too_long(name, len(ids)))
        text = self._growing(ids, limit, 0)
        steps = self._steps([ids], [text], copies=1)

        def pieces() -> Iterator[str]:
            for _ in steps:
                yield from filter(None, text.pieces)
                text.pieces.clear()
            self._warn(name, len(ids), limit, text.stopped)

        return pieces()

    def limit(self, prompt: int) -> int | None:
        """How many tokens may follow a prompt of so many: 0 when it is too long, None when there is no limit."""
        wanted, reach = self.settings.max_tokens, self.reach
        if self.bound is not None:
            return wanted
        if reach is None:
            return wanted if wanted is not None else max(0, self.model.settings.max_length - prompt)
        room = max(0, reach - prompt)
        return room if wanted is None else min(room, wanted)

    def _encode(self, prompts: list[str], names: list[str]) -> list[list[int]]:
        ids = [[*self.begin, *each] for each in encode_or_replace(self.tokenizer, prompts, names)]
        first = self.tokenizer.eos if self.tokenizer.bos is None else self.tokenizer.bos
        return [each or [first] for each in ids]  # something must stand before the first token

    def _columns(self, prompt: int, limit: int | None) -> int:
        """How much of the budget of a batch a row takes."""
        if self.bound is None:
            return prompt + (limit or 0)
        return self.bound.size if limit is None else min(prompt + limit, self.bound.size)

    def _continue(self, prompts: list[list[int]], limits: list[int | None]) -> list[tuple[Continuation, ...]]:
        """The continuations of a batch of prompts."""
        if self.settings.beam > 1:
            return self._search(prompts, limits)
        n = self.settings.n
        texts = [
            self._growing(ids, limit, number) for ids, limit in zip(prompts, limits, strict=True) for number in range(n)
        ]
        for _ in self._steps(prompts, texts, copies=n):
            pass
        grown = [_grown(text) for text in texts]
        return [tuple(grown[start : start + n]) for start in range(0, len(texts), n)]

    def _growing(self, prompt: list[int], limit: int | None, number: int) -> Growing:
        """The text of this number after a prompt: its chances depend on nothing else."""
        seed = self.settings.seed
        chances = Random() if seed is None else Random(f"{seed} {number} {prompt}")
        return Growing(limit, self._reader(prompt), chances)

    def _reader(self, prompt: list[int]) -> StopReader:
        return StopReader(self.tokenizer, prompt, self.settings.stop)

    def _steps(self, prompts: list[list[int]], texts: list[Growing], copies: int) -> Iterator[None]:
        """Let the texts grow, `copies` of them from each prompt, which is read once."""
        settings, end = self.settings, self.tokenizer.eos
        prompts_RT = fill_left(prompts, self.device)
        contrastive = settings.contrastive > 0
        with torch.inference_mode():
            decoder = CachedText(self.model, prompts_RT, bound=self.bound, keep_states=contrastive)
            if copies > 1:
                rows_R = torch.arange(len(prompts), device=self.device).repeat_interleave(copies)
                decoder.reorder(rows_R, rows_R)
                prompts_RT = prompts_RT[rows_R]
        processors = self._processors(prompts_RT.shape[1])
        if not contrastive:
            return choose_step_by_step(decoder, prompts_RT, texts, self.choose, end=end, processors=processors)
        return contrast_step_by_step(
            decoder, prompts_RT, texts, settings.contrastive, settings.candidates, end=end, processors=processors
        )

    def _search(self, prompts: list[list[int]], limits: list[int | None]) -> list[tuple[Continuation, ...]]:
        """The best continuations by beam search."""
        settings = self.settings
        prompts_RT = fill_left(prompts, self.device)
        readers = [self._reader(prompt) for prompt in prompts]
        with torch.inference_mode():
            found = beam_search(
                CachedText(self.model, prompts_RT),
                [limit for limit in limits if limit is not None],
                SearchSettings(beam=settings.beam, alpha=settings.alpha, nbest=settings.n),
                begin=prompts_RT,
                end=self.tokenizer.eos,
                processors=self._processors(prompts_RT.shape[1]),
                complete=(lambda source, ids: _reads_stop(readers[source], ids)) if settings.stop else None,
            )
        continued = [
            [_found(reader, limit, hypothesis) for hypothesis in hypotheses]
            for reader, limit, hypotheses in zip(readers, limits, found, strict=True)
        ]
        if settings.repetition_penalty != 1:  # which is part of what the search added up
            continued = [self._reread(prompt, several) for prompt, several in zip(prompts, continued, strict=True)]
        return list(map(tuple, continued))

    def _reread(self, prompt: list[int], found: Sequence[Continuation]) -> list[Continuation]:
        """The same with their probabilities under the model."""
        said = [[*each.ids, *[self.tokenizer.eos] * (each.stopped == "end")] for each in found]
        texts = [Growing(len(tokens)) for tokens in said]
        growing = [(text, tokens) for text, tokens in zip(texts, said, strict=True) if tokens]
        if not growing:
            return list(found)

        def next_said(scores_RV: Float[Tensor, "R V"], chances: Sequence[float]) -> Int[Tensor, " R"]:
            tokens = [tokens[len(text.ids)] for text, tokens in growing if text.stopped is None]
            return torch.tensor(tokens, device=scores_RV.device)

        prompts_RT = fill_left([prompt] * len(growing), self.device)
        decoder = CachedText(self.model, prompts_RT)
        for _ in choose_step_by_step(decoder, prompts_RT, [text for text, _ in growing], next_said, end=NOTHING):
            pass
        return [replace(each, log_probability=text.log_probability) for each, text in zip(found, texts, strict=True)]

    def _processors(self, prompt: int) -> list[Processor]:
        settings, tokenizer = self.settings, self.tokenizer
        processors: list[Processor] = [Ban(tokenizer.forbidden, self.device)]
        if settings.repetition_penalty != 1:
            processors.append(RepetitionPenalty(settings.repetition_penalty))
        if settings.no_repeat:
            processors.append(NoRepeat(settings.no_repeat))
        if settings.min_tokens:
            processors.append(MinimumLength(tokenizer.eos, settings.min_tokens, prompt))
        return processors

    def _warn(self, name: str, prompt: int, limit: int | None, stopped: Stopped | Literal["refused"] | None) -> None:
        """Say what the model's length took from a text."""
        if stopped == "refused":
            log.warning(self._too_long(name, prompt))
        elif stopped == "length" and limit != self.settings.max_tokens:
            log.warning(
                "%s: the text was cut after %d tokens, where the model's length of %d was used up; "
                "endless text goes on beyond it",
                name,
                limit,
                self.model.settings.max_length,
            )

    def _too_long(self, name: str, prompt: int) -> str:
        return (
            f"{name}: has {prompt} tokens and the model's length is {self.model.settings.max_length}, so that nothing "
            "can follow; shorten it, or ask for endless text"
        )


def _grown(text: Growing) -> Continuation:
    assert text.stopped is not None
    return Continuation("".join(text.pieces), tuple(text.ids), text.log_probability, text.stopped)


def _reads_stop(prompt: StopReader, ids: list[int]) -> bool:
    """Whether a stop string comes in these tokens after a prompt that has been read."""
    reader = prompt.copy()
    for token in ids:
        reader.push(token)
    return reader.stopped


def _found(prompt: StopReader, limit: int | None, hypothesis: Hypothesis) -> Continuation:
    reader = prompt.copy()
    text = "".join(map(reader.push, hypothesis.ids)) + reader.finish()
    stopped: Stopped = "stop" if reader.stopped else "end" if hypothesis.finished else "length"
    if stopped == "length" and len(hypothesis.ids) != limit:
        stopped = "blocked"
    return Continuation(text, hypothesis.ids, hypothesis.log_probability, stopped)
