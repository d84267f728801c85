"""A run rehearsed: each of its stages carried out once or in part, in a process of its own, timed and weighed.

The process is a fresh one, as that of a run, so what it holds at most is what the run will hold; when memory runs out,
it is the one that ends. It writes nothing into the run's directory: it works in a folder beside with links to the data.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.data.feed import AnyBatch
from regard.model import adapters, store
from regard.pipelines import write_directory
from regard.runs import memory
from regard.runs.footprint import shape, shapes
from regard.runs.run import build_model, build_trainer, go_on
from regard.runs.task import Run, Search, Task
from regard.runs.tasks import TASKS
from regard.search.beam import beam_search
from regard.search.decoder import CachedDecoder
from regard.search.engine import WINDOW, pad_sources
from regard.search.processors import Ban
from regard.search.windows import batches
from regard.text.tokenizer import TokenizerPair
from regard.training.checkpoint import average, load_checkpoint, load_latest, save_checkpoint
from regard.training.terminal import TerminalView
from regard.training.trainer import Trainer

SECONDS = 20.0
"""How long training is tried."""

SAMPLED = 200
"""Of more batches of validation text, so many are tried."""

SHARE = 0.25
"""Of that, how long each other stage may be tried at most; what would take longer is tried in part."""

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
    """Of each validation."""
    checkpoint: float = 0.0
    """Of each checkpoint."""
    final: float = 0.0
    """Choosing the final weights and writing the model."""
    test: float = 0.0
    peaks: dict[str, int] = field(default_factory=dict)
    """Bytes held at most, by stage."""

    @property
    def peak(self) -> int:
        return max(self.peaks.values())


def rehearse(run: Run, scratch: Path, begin: float, seconds: float, enter: Callable[[str], None]) -> Rehearsal:
    """Carry out each stage of a run whose data is prepared.

    Args:
        scratch: an empty folder to work in.
        begin: when the process was started, as `time.time()` gives it.
        seconds: how long training is tried.
        enter: is told each stage when it begins.
    """
    settings, found = run.settings, Rehearsal()
    if settings.training.threads is not None:
        torch.set_num_threads(settings.training.threads)
    latest = load_latest(run.directory / "checkpoints")
    task = TASKS[settings.task](_linked(run, scratch))
    with _weighed(found, "start", enter):
        trainer = build_trainer(task, build_model(task, new=latest is None), TerminalView())
        if latest is not None:
            go_on(trainer, *latest)
            found.first_step = trainer.progress.step
            latest = None
    found.start = time.time() - begin
    with _weighed(found, "training", enter, trainer.device):
        _train(trainer, found, seconds)
    limit = SHARE * seconds
    with _weighed(found, "validation", enter, trainer.device):
        loss, found.validation = _validate(task, trainer, limit)
    with _weighed(found, "checkpoints", enter, trainer.device):
        path = save_checkpoint(scratch / "checkpoints", 1, trainer.checkpoint())  # the first one warms the disk
        started = time.perf_counter()
        save_checkpoint(scratch / "checkpoints", 2, trainer.checkpoint())
        found.checkpoint = time.perf_counter() - started
    with _weighed(found, "final model", enter, trainer.device):
        found.final = _finish(task, trainer, path, found)
    with _weighed(found, "test", enter, trainer.device):
        found.test = _test(task, trainer, loss, limit)
    return found


def _linked(run: Run, scratch: Path) -> Run:
    """The same run in another folder, with its data in it."""
    for path in (run.data, *run.directory.glob("tokenizer*.json")):
        (scratch / path.name).symlink_to(path.absolute())
    return Run(scratch, run.settings, run.corpus, lambda text: None)


@contextmanager
def _weighed(
    found: Rehearsal, name: str, enter: Callable[[str], None], device: torch.device | None = None
) -> Iterator[None]:
    """Note what is held at most until the end of the block."""
    enter(name)
    memory.forget_peak()
    on_gpu = device is not None and device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    yield
    found.peaks[name] = torch.cuda.max_memory_reserved(device) if on_gpu else memory.held().peak


def _train(trainer: Trainer, found: Rehearsal, seconds: float) -> None:
    """Steps on the largest batches, for their memory; then, timed, on batches in random order, as an epoch has them.

    Batches differ in size, so time is counted by position and given to the mean of the epoch.
    """
    epoch, accumulate = trainer.progress.epoch, trainer.settings.accumulate
    sizes = shapes(trainer, epoch)
    mean = sum(size.positions for size in sizes) / len(sizes)
    for k in sorted(range(len(sizes)), key=lambda k: -sizes[k].positions)[:2]:
        trainer.step(_window(trainer, epoch, k))
    before = trainer.progress.source_tokens, trainer.progress.target_tokens
    stream = _stream(trainer, epoch)
    positions, begin, spent = 0.0, time.perf_counter(), 0.0
    most = max(3, trainer.settings.steps - found.first_step)
    while found.tried < most and (spent < seconds or found.tried < 2):
        window = list(islice(stream, accumulate))
        trainer.step(window)
        positions += sum(shape(batch).positions for batch in window)
        found.tried += 1
        spent = time.perf_counter() - begin
    found.step = spent / positions * mean * accumulate
    found.source_rate = (trainer.progress.source_tokens - before[0]) / spent
    found.target_rate = (trainer.progress.target_tokens - before[1]) / spent


def _stream(trainer: Trainer, epoch: int) -> Iterator[AnyBatch]:
    """All batches from an epoch on."""
    return chain.from_iterable(map(trainer.batches.epoch, count(epoch)))


def _window(trainer: Trainer, epoch: int, k: int) -> list[AnyBatch]:
    """The batches of an update, beginning with batch k of an epoch."""
    following = chain(trainer.batches.epoch(epoch, k), _stream(trainer, epoch + 1))
    return list(islice(following, trainer.settings.accumulate))


def _validate(task: Task, trainer: Trainer, limit: float) -> tuple[float, float]:
    """Seconds that the loss of all validation text takes, and the whole validation."""
    model = trainer.model.eval()
    try:
        loss = _loss_seconds(task, trainer, limit)
        search = task.searches("dev")
        if search is not None:
            return loss, loss + search_seconds(model, TokenizerPair.load(task.run.directory), search, limit)
        if loss > limit and task.metrics != ("loss",):
            return loss, 2 * loss  # labels are told by a second pass over all
        return loss, loss + _seconds(lambda: task.measure(model, show=True))
    finally:
        model.train()


@torch.no_grad()
def _loss_seconds(task: Task, trainer: Trainer, limit: float) -> float:
    """How long the loss of all validation text takes: the largest batches and some others are computed."""
    sizes = [shape(batch) for batch in task.dev.in_order()]
    if not sizes:
        return 0.0
    largest, *others = _largest_then_random([size.positions for size in sizes])
    wanted = {largest, *others[:SAMPLED]}
    spent = done = 0.0
    for k, batch in enumerate(task.dev.in_order()):
        if k == largest or (k in wanted and spent < limit):
            begin = time.perf_counter()
            with trainer.precision():
                float(trainer.objective(trainer.model, batch.to(trainer.device)).nll)
            spent += time.perf_counter() - begin
            done += sizes[k].positions
    return spent / done * sum(size.positions for size in sizes)


def search_seconds(model: nn.Module, tokenizers: TokenizerPair, search: Search, limit: float) -> float:
    """How long it takes to translate all that a validation or the test does, once the model has learned when to end.

    What has not learned that goes on to its limit, or ends at once. So the search is held to the lengths of the
    references: the end is forbidden, and each output's limit is its reference's length.
    """
    inner: Any = store.unwrap(model)
    frame = len(tokenizers.source_begin) + len(tokenizers.source_end)
    sources = tokenizers.source.encode(search.sources)
    outputs = [len(ids) + 1 for ids in tokenizers.target.encode(search.references)]
    reach, longest = inner.settings.source_reach - frame, inner.settings.max_length - len(tokenizers.target_begin)
    rows = [(ids[:reach], max(1, min(size, longest))) for ids, size in zip(sources, outputs, strict=True) if ids]
    beam = search.settings.beam
    planned = []
    for start in range(0, len(rows), WINDOW):
        window = rows[start : start + WINDOW]
        for indices in batches([len(ids) + frame for ids, _ in window], search.settings.batch_tokens // beam):
            planned.append([window[index] for index in indices])
    work = [_work([size for _, size in batch], beam) for batch in planned]
    spent, done = 0.0, 0
    for place, k in enumerate(_largest_then_random(work)):
        if place and spent >= limit:
            break
        spent += _seconds(partial(_search, inner, tokenizers, planned[k], search))
        done += work[k]
    decoding = spent / done * sum(work) if done else 0.0
    return decoding + _seconds(lambda: search.score(search.references))


def _work(limits: list[int], beam: int) -> int:
    """What a search costs that ends each output at its limit, in rows of one step."""
    return sum(limits) * beam + max(limits) * OVERHEAD_ROWS


def _search(model: Any, tokenizers: TokenizerPair, batch: list[tuple[list[int], int]], search: Search) -> None:
    device = next(model.parameters()).device
    *forced, begin = tokenizers.target_begin
    banned = [*tokenizers.target.forbidden, tokenizers.target_end]
    with torch.inference_mode():
        decoder = CachedDecoder(model, *pad_sources(tokenizers, [ids for ids, _ in batch], device), forced)
        beam_search(
            decoder,
            [size for _, size in batch],
            search.settings,
            begin=begin,
            end=tokenizers.target_end,
            processors=[Ban(banned, device)],
            device=device,
        )


def _finish(task: Task, trainer: Trainer, checkpoint: Path, found: Rehearsal) -> float:
    """Seconds to choose the final weights among the best and the average of the last, and to write the model."""
    begin = time.perf_counter()
    best = load_checkpoint(checkpoint).model
    loading = time.perf_counter() - begin
    kept = task.run.settings.checkpoints.keep_last
    last = min(kept, math.ceil((trainer.settings.steps - found.first_step) / task.run.settings.validation.every))
    averaging = _seconds(lambda: store.assign(trainer.model, average([checkpoint] * min(last, 2)), "average"))
    store.assign(trainer.model, best, "best")
    model = store.unwrap(trainer.model).eval()
    if task.run.settings.adapters is not None:
        adapters.merge(model)
    writing = _seconds(lambda: write_directory(task.run.directory / "model", task.pipeline(model), ""))
    candidates = 1 + (last > 1)
    return loading + averaging * last / min(last, 2) + candidates * found.validation + writing


def _test(task: Task, trainer: Trainer, loss: float, limit: float) -> float:
    """Seconds to measure the model on the test text, estimated by the size of its files where that may be long."""
    files, model = task.run.corpus.test, store.unwrap(trainer.model).eval()
    if files is None:
        return 0.0
    search = task.searches("test")
    if search is not None:
        return search_seconds(model, TokenizerPair.load(task.run.directory), search, limit)
    dev = task.run.corpus.dev
    share = files.source.stat().st_size / dev.source.stat().st_size if dev is not None else 1.0
    passes = 1 if task.metrics == ("loss",) else 2
    if passes * share * loss <= limit:
        return _seconds(lambda: task.test(model))
    return passes * share * loss


def _largest_then_random(sizes: Sequence[float]) -> list[int]:
    """The index of the largest, then those of the others in random order, the same each time."""
    largest = max(range(len(sizes)), key=lambda k: sizes[k])
    order = random.Random(1).sample(range(len(sizes)), len(sizes))
    return [largest, *(k for k in order if k != largest)]


def _seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
