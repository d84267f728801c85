"""A run rehearsed: each of its stages carried out once or in part, in a process of its own, timed and weighed.

The process is a fresh one, as that of a run, so what it holds at most is what the run will hold; when memory runs out,
it is the one that ends. It writes nothing into the run's directory: it works in a folder beside with links to the data.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from regard.data.feed import AnyBatch
from regard.model import adapters, store
from regard.pipelines import write_directory
from regard.runs import memory
from regard.runs.footprint import count as count_kept
from regard.runs.footprint import shape, shapes
from regard.runs.run import begin
from regard.runs.task import Run, Search, Task
from regard.runs.tasks import TASKS
from regard.search.beam import beam_search
from regard.search.decoder import CachedDecoder
from regard.search.engine import WINDOW, pad_sources
from regard.search.processors import Ban
from regard.search.windows import batches
from regard.text.tokenizer import TokenizerPair
from regard.training.checkpoint import average, load_checkpoint, save_checkpoint
from regard.training.process import settle
from regard.training.terminal import TerminalView
from regard.training.trainer import Trainer

SECONDS = 20.0
"""How long training is tried."""

SAVED = "saved"
"""The folder of checkpoints that are written for their time and memory."""

SAMPLED = 200
"""Of more batches of validation text, so many are tried."""

SHARE = 0.25
"""Of that, how long each other stage may be tried at most; what would take longer is tried in part."""

Clock = Literal["wall", "cpu"]
"""cpu: what this process itself spends, on whatever else the machine is busy with; for measurements with one thread."""

LEARNED = 400_000
"""After about so many target tokens a model knows when to end; before, it often goes on to the limit of a search."""

OVERHEAD_ROWS = 16
"""A step of decoding takes as long, before it looks at any row, as so many rows."""


@dataclass
class Rehearsal:
    """What was measured. Times are in seconds of the whole run to come, unless said otherwise."""

    start: float = 0.0
    """From the start of the process to the first step."""
    step: float = 0.0
    """Of one update, the mean over an epoch."""
    first_step: int = 0
    """Updates that were done before: a run that goes on."""
    tried: int = 0
    """Updates that were timed."""
    source_rate: float = 0.0
    target_rate: float = 0.0
    """Real tokens a second while training."""
    validation: float = 0.0
    """Of each validation, of a model that knows when to end."""
    early_validation: float = 0.0
    """Of one before that."""
    early: int = 0
    """The update after which it knows."""
    checkpoint: float = 0.0
    """Of each checkpoint."""
    final: float = 0.0
    """Choosing the final weights and writing the model."""
    test: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)
    """Bytes held at most, by stage: of a GPU's memory where that computes."""

    @property
    def peak(self) -> int:
        return max(self.peaks.values())

    def validation_at(self, step: int) -> float:
        """Seconds of the validation at a step."""
        return self.validation if step >= self.early else self.early_validation


def rehearse(
    run: Run, scratch: Path, seconds: float, enter: Callable[[str], None], started: float, clock: Clock = "wall"
) -> Rehearsal:
    """Carry out each stage of a run whose data is prepared.

    Args:
        scratch: an empty folder to work in.
        seconds: how long training is tried.
        enter: is told each stage when it begins.
        started: when the process was started, as `time.time()` gives it.
    """
    settings, found = run.settings, Rehearsal()
    settle(settings.training.threads)
    enter("start")
    task = TASKS[settings.task](_linked(run, scratch))
    trainer, _ = begin(task, TerminalView())
    count_kept(trainer)  # as the run does, which leaves its traces in memory
    found.first_step = trainer.progress.step
    found.start = time.process_time() if clock == "cpu" else time.time() - started
    found.peaks["start"] = memory.held_on(trainer.device).peak
    stages = _Stages(task, trainer, found, seconds, time.process_time if clock == "cpu" else time.perf_counter)
    for name, stage in stages.in_order.items():
        enter(name)
        memory.forget_peak(trainer.device)
        stage()
        found.peaks[name] = memory.held_on(trainer.device).peak
    return found


def _linked(run: Run, scratch: Path) -> Run:
    """The same run in another folder, with its data and its checkpoints so far in it."""
    for path in (run.data, *run.directory.glob("checkpoints"), *run.directory.glob("tokenizer*.json")):
        (scratch / path.name).symlink_to(path.absolute())
    return Run(scratch, run.settings, run.corpus, lambda text: None)


class _Stages:
    """The stages of a run after its start, one after the other."""

    def __init__(
        self, task: Task, trainer: Trainer, found: Rehearsal, seconds: float, clock: Callable[[], float]
    ) -> None:
        self.task, self.trainer, self.found, self.clock = task, trainer, found, clock
        self.seconds = seconds
        self.limit = SHARE * seconds
        """Seconds for each other stage."""
        self.largest: list[AnyBatch] = []
        """The batches of the largest update."""
        self.loss = 0.0
        """Seconds that the loss of all validation text takes."""
        self.in_order = {
            "training": self.train,
            "validation": self.validate,
            "checkpoints": self.save,
            "final model": self.finish,
            "test": self.test,
        }

    def train(self) -> None:
        """Steps on the largest batches, for their memory; then, timed, on batches in the random order of an epoch.

        Batches differ in size, so time is counted by position and given to the mean of the epoch.
        """
        trainer, found = self.trainer, self.found
        epoch, accumulate = trainer.progress.epoch, trainer.settings.accumulate
        sizes = shapes(trainer, epoch)
        mean = sum(size.positions for size in sizes) / len(sizes)
        stream = chain.from_iterable(map(trainer.batches.epoch, count(epoch)))
        for k in sorted(range(len(sizes)), key=lambda k: sizes[k].positions)[-2:]:
            self.largest = list(islice(chain(trainer.batches.epoch(epoch, k), stream), accumulate))
            trainer.step(self.largest)
        stream = chain.from_iterable(map(trainer.batches.epoch, count(epoch)))
        before = trainer.progress.source_tokens, trainer.progress.target_tokens
        positions, begin, spent = 0.0, self.clock(), 0.0
        most = max(3, trainer.settings.steps - found.first_step)
        while found.tried < most and (spent < self.seconds or found.tried < 2):
            window = list(islice(stream, accumulate))
            trainer.step(window)
            positions += sum(shape(batch).positions for batch in window)
            found.tried += 1
            spent = self.clock() - begin
        found.step = spent / positions * mean * accumulate
        found.source_rate = (trainer.progress.source_tokens - before[0]) / spent
        found.target_rate = (trainer.progress.target_tokens - before[1]) / spent
        found.early = round(LEARNED / max(found.target_rate * found.step, 1))

    def validate(self) -> None:
        """The loss of validation text, and what is measured beside it."""
        model = self.trainer.model.eval()
        self.loss = self._loss_of_dev()
        search = self.task.searches("dev")
        early = None
        if search is not None:
            beside = self._translating(model, search, learned=True)
            first = min(self.task.run.settings.validation.every, self.trainer.settings.steps)
            early = self._translating(model, search, learned=False) if first < self.found.early else None
        elif self.loss > self.limit and self.task.metrics != ("loss",):
            beside = self.loss  # labels are told by a second pass over all
        else:
            beside = self._seconds(lambda: self.task.measure(model, show=True))
        self.found.validation = self.loss + beside
        self.found.early_validation = self.loss + (beside if early is None else early)
        model.train()

    def save(self) -> None:
        """Two checkpoints, the first of which warms the disk, and a step between them: memory is in pieces then."""
        folder = self.task.run.directory / SAVED
        save_checkpoint(folder, 1, self.trainer.checkpoint())
        self.trainer.step(self.largest)
        self.found.checkpoint = self._seconds(lambda: save_checkpoint(folder, 2, self.trainer.checkpoint()))

    def finish(self) -> None:
        """Choose the final weights among the best and the average of the last, and write the model."""
        run, trainer = self.task.run, self.trainer
        path = run.directory / SAVED / "step-2"
        begin = self.clock()
        best = load_checkpoint(path).model
        loading = self.clock() - begin
        validations = math.ceil((trainer.settings.steps - self.found.first_step) / run.settings.validation.every)
        last = max(1, min(run.settings.checkpoints.keep_last, validations))
        averaging = self._seconds(lambda: store.assign(trainer.model, average([path] * min(last, 2)), "average"))
        store.assign(trainer.model, best, "best")
        model = store.unwrap(trainer.model).eval()
        if run.settings.adapters is not None:
            adapters.merge(model)
        writing = self._seconds(lambda: write_directory(run.directory / "model", self.task.pipeline(model), ""))
        candidates = 1 + (last > 1)
        averaged = averaging * last / min(last, 2)
        self.found.final = loading + averaged + candidates * self.found.validation_at(trainer.settings.steps) + writing

    def test(self) -> None:
        """Measure the model on the test text; what may be long is estimated by the size of its file."""
        files, model = self.task.run.corpus.test, store.unwrap(self.trainer.model).eval()
        if files is None:
            return
        search = self.task.searches("test")
        if search is not None:
            learned = self.trainer.settings.steps >= self.found.early
            self.found.test = self._translating(model, search, learned)
            return
        dev = self.task.run.corpus.dev
        share = files.source.stat().st_size / dev.source.stat().st_size if dev is not None else 1.0
        passes = 1 if self.task.metrics == ("loss",) else 2
        expected = passes * share * self.loss
        self.found.test = expected if expected > self.limit else self._seconds(lambda: self.task.test(model))

    @torch.no_grad()
    def _loss_of_dev(self) -> float:
        """How long the loss of all validation text takes: the largest batch and some others are computed."""
        trainer = self.trainer
        sizes = [shape(batch).positions for batch in self.task.dev.in_order()]
        if not sizes:
            return 0.0
        largest, *others = _largest_then_random(sizes)
        wanted = {largest, *others[:SAMPLED]}
        spent = done = 0.0
        for k, batch in enumerate(self.task.dev.in_order()):
            if k == largest or (k in wanted and spent < self.limit):
                begin = self.clock()
                with trainer.precision():
                    float(trainer.objective(trainer.model, batch.to(trainer.device)).nll)
                spent += self.clock() - begin
                done += sizes[k]
        return spent / done * sum(sizes)

    def _translating(self, model: nn.Module, search: Search, learned: bool) -> float:
        """How long a search takes: by what the model says now, or with each output as long as its reference."""
        inner: Any = store.unwrap(model)
        tokenizers = TokenizerPair.load(self.task.run.directory)
        planned = search_batches(inner, tokenizers, search)
        sizes = [[row.size if learned else row.limit for row in batch] for batch in planned]
        work = [sum(each) * search.settings.beam + max(each) * OVERHEAD_ROWS for each in sizes]
        spent, done = 0.0, 0
        for place, k in enumerate(_largest_then_random(work)):
            if place and spent >= self.limit:
                break
            spent += self._seconds(partial(_search, inner, tokenizers, planned[k], sizes[k], search, learned))
            done += work[k]
        decoding = spent / done * sum(work) if done else 0.0
        return decoding + self._seconds(lambda: search.score(search.references))

    def _seconds(self, action: Callable[[], object]) -> float:
        begin = self.clock()
        action()
        return self.clock() - begin


class Row(NamedTuple):
    """A source to translate."""

    source: list[int]
    size: int
    """Tokens of its reference, the end counted."""
    limit: int
    """The most tokens that its translation may have."""


def search_batches(model: Any, tokenizers: TokenizerPair, search: Search) -> list[list[Row]]:
    """The batches of a search as `translate` makes them."""
    frame = len(tokenizers.source_begin) + len(tokenizers.source_end)
    reach, longest = model.settings.source_reach - frame, model.settings.max_length - len(tokenizers.target_begin)
    pairs = zip(tokenizers.source.encode(search.sources), tokenizers.target.encode(search.references), strict=True)
    rows = [
        Row(source[:reach], min(len(target) + 1, longest), min(len(source) + search.settings.extra_tokens, longest))
        for source, target in pairs
        if source
    ]
    planned = []
    for start in range(0, len(rows), WINDOW):
        window = rows[start : start + WINDOW]
        lengths = [len(row.source) + frame for row in window]
        for indices in batches(lengths, search.settings.batch_tokens // search.settings.beam):
            planned.append([window[index] for index in indices])
    return planned


def _search(
    model: Any, tokenizers: TokenizerPair, batch: list[Row], limits: list[int], search: Search, endless: bool
) -> None:
    """Search for outputs within these limits; `endless` ones go on to them, as they may not end."""
    device = next(model.parameters()).device
    *forced, begin = tokenizers.target_begin
    banned = [*tokenizers.target.forbidden, *([tokenizers.target_end] if endless else [])]
    decoder = CachedDecoder(model, *pad_sources(tokenizers, [row.source for row in batch], device), forced)
    beam_search(
        decoder,
        limits,
        search.settings,
        begin=begin,
        end=tokenizers.target_end,
        processors=[Ban(banned, device)],
        device=device,
    )


def _largest_then_random(sizes: Sequence[float]) -> list[int]:
    """The index of the largest, then those of the others in random order, the same each time."""
    largest = max(range(len(sizes)), key=lambda k: sizes[k], default=0)
    order = random.Random(1).sample(range(len(sizes)), len(sizes))
    return [k for k in order if k == largest] + [k for k in order if k != largest]
