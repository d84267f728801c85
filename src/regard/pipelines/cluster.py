"""The lines of a file answered by workers on many machines, by Ray Data: in order, and each once.

The file is cut into shards (`pipelines.shards`), and workers keep what becomes of each (`pipelines.parts`). Ray
hands the shards out, starts the workers, and gives a shard to another one where its worker is lost. What is translated
does not pass through Ray: a report says no more than that a shard is done, and what a person should know.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.errors import JobError, UserError
from regard.pipelines.journal import Answerer
from regard.pipelines.parts import Parts
from regard.pipelines.shards import Shard, read_shard
from regard.text.lines import encode_line, one_line

log = logging.getLogger("regard")

ATTEMPTS = 5
"""So many workers begin with a shard before it is taken to be what they die of."""
BLOCKS = 4096
"""Ray is given so many tasks at most; with more shards, each has several."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
"""Environment of Ray, where it is not set otherwise: nothing is sent to its makers, and its own news are not shown."""
STORE = 128 << 20
"""Bytes of shared memory for Ray on this machine: there is next to nothing to share."""


@dataclass(frozen=True)
class Work:
    """All that a worker has to know, wherever it is."""

    source: Path
    """The file, by a name that holds on all machines."""
    name: str
    """What to call it in messages."""
    parts: Parts
    begin: Callable[[], Answerer]
    """Gives what answers texts: it reads the model."""
    numbered: bool = False
    """Whether each line of the output begins with the number of its line in the file."""


class Report(NamedTuple):
    """What a worker says of a shard."""

    number: int
    said: tuple[tuple[int, str], ...] = ()
    """Levels and messages of the log."""
    wrong: str | None = None
    """What a person has to change before it can be done."""
    failed: str | None = None
    """Why it could not be done."""


Reports = Generator[Report, None, None]
Runner = Callable[[Work, Sequence[Shard]], Reports]
"""Has shards done, in any order, and reports each. When it is closed, no more is done."""


class Worker:
    """Does shards, one after another, with one model."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, shard: Shard) -> Report:
        if self._work.parts.has(shard):
            return Report(shard.number)
        with _heard() as said:
            wrong = failed = None
            try:
                self._do(shard)
            except UserError as error:
                wrong = str(error)
            except JobError as error:
                failed = str(error)
        return Report(shard.number, tuple(said), wrong, failed)

    @cached_property
    def _answer(self) -> Answerer:
        return self._work.begin()

    def _do(self, shard: Shard) -> None:
        """A text that stands in a shard several times is answered once."""
        if self._work.parts.begin(shard) > ATTEMPTS:
            last_line = shard.first_line + shard.lines - 1
            raise JobError(
                f"{self._work.name}, lines {shard.first_line} to {last_line}: {ATTEMPTS} workers were lost with them; "
                "is there enough memory? Fewer --shard-lines or --batch-tokens need less"
            )
        lines = list(read_shard(self._work.source, shard, self._work.name, bad="replace"))
        first: dict[str, int] = {}
        for number, text in enumerate(lines, start=shard.first_line):
            first.setdefault(text, number)
        answers = dict(zip(first, self._answer(list(first), list(first.values())), strict=True))
        output = b"".join(
            encode_line(one_line(f"{number}\t{line}" if self._work.numbered else line))
            for number, text in enumerate(lines, start=shard.first_line)
            for line in answers[text].lines
        )
        self._work.parts.write(shard, output, sum(not answers[text].finished for text in lines))


def carry_on(work: Work, shards: Sequence[Shard], run: Runner) -> Generator[int, None, None]:
    """Have all shards done that are not, and say at first and after each how many lines are done.

    Raises:
        UserError, JobError: a worker could not do a shard, or Ray could not go on.
    """
    there = work.parts.done(shards)
    done = sum(shard.lines for shard in shards if shard.number in there)
    yield done
    missing = [shard for shard in shards if shard.number not in there]
    if not missing:
        return
    with closing(run(work, missing)) as reports:
        for report in reports:
            for level, message in report.said:
                log.log(level, "%s", message)
            if report.wrong is not None:
                raise UserError(report.wrong)
            if report.failed is not None:
                raise JobError(report.failed)
            done += shards[report.number].lines
            yield done


def in_this_process(work: Work, shards: Sequence[Shard]) -> Reports:
    """A `Runner` without Ray."""
    yield from map(Worker(work), shards)


def on_ray(workers: int | None, address: str | None = None) -> Runner:
    """A `Runner` with so many workers, of one core each.

    Args:
        workers: None takes all cores of the cluster or this machine.
        address: of a Ray cluster, or "auto" for the one that this machine belongs to; None starts one of this machine
            alone, which ends with the job. Where this process is connected already, that is used.

    Raises:
        UserError: Ray is not installed. The runner raises it also where no cluster answers at the address, and
            `JobError` where Ray gives up.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray.data
    except ImportError:
        raise UserError("work on several machines needs Ray: pip install 'regard[ray]'") from None

    def run(work: Work, shards: Sequence[Shard]) -> Reports:
        with _cluster(workers, address) as cores:
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = context.print_on_execution_start = False
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            dataset = ray.data.from_items(
                [asdict(shard) for shard in shards], override_num_blocks=min(len(shards), BLOCKS)
            )
            reports = dataset.map(
                _RayWorker,
                fn_constructor_args=(work,),
                compute=ray.data.ActorPoolStrategy(size=min(workers or cores, len(shards))),
                num_cpus=1,
            )
            try:
                for row in reports.iter_rows():
                    number, said, wrong, failed = json.loads(row["report"])
                    yield Report(number, tuple(map(tuple, said)), wrong, failed)
            except ray.exceptions.RayError as error:
                raise JobError(_in_words(error)) from None

    return run


class _RayWorker:
    """A `Worker` among rows of a dataset."""

    def __init__(self, work: Work) -> None:
        self._do = Worker(work)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        shard = Shard(**{name: int(value) for name, value in row.items()})
        return {"report": json.dumps(self._do(shard))}


@contextmanager
def _cluster(workers: int | None, address: str | None) -> Iterator[int]:
    """A connection to Ray, and how many cores there are."""
    import ray

    if ray.is_initialized():
        yield int(ray.cluster_resources().get("CPU", 1))
        return
    with _signals_as_they_are():
        _connect(workers, address)
    try:
        yield int(ray.cluster_resources().get("CPU", 1))
    finally:
        ray.shutdown()


def _connect(workers: int | None, address: str | None) -> None:
    import ray

    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        cores = workers or torch.get_num_threads()
        ray.init("local", num_cpus=cores, object_store_memory=STORE, include_dashboard=False, **quiet)
        return
    try:
        ray.init(address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"--address {address}: cannot be connected to: {first}") from None


@contextmanager
def _signals_as_they_are() -> Iterator[None]:
    """Ray ends a process that is asked to end, instead of letting it put things in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(each) for each in asked]
    try:
        yield
    finally:
        for each, handler in zip(asked, before, strict=True):
            signal.signal(each, handler)


def _in_words(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"Ray gave up: {lines[-1].strip() if lines else type(error).__name__}; run again to go on"


class _Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelno, record.getMessage()))


@contextmanager
def _heard() -> Iterator[list[tuple[int, str]]]:
    """What is logged in the block, instead of its being shown."""
    kept, before = _Kept(), (log.handlers, log.propagate)
    log.handlers, log.propagate = [kept], False
    try:
        yield kept.said
    finally:
        log.handlers, log.propagate = before
