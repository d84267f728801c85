"""`regard bulk`: a large file, translated by many cores or machines."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from regard.cli.translating import Translating
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.pipelines import Translator
    from regard.pipelines.journal import Answer, Answerer, Terms
    from regard.search.settings import SearchSettings

log = logging.getLogger("regard")

_AtLeastOne = Parameter(validator=validators.Number(gte=1))


def bulk(
    model: Path,
    /,
    *,
    input: Annotated[Path, Parameter(alias="-i")],
    output: Annotated[Path, Parameter(alias="-o")],
    workers: Annotated[int | None, _AtLeastOne] = None,
    address: str | None = None,
    shard_lines: Annotated[int, _AtLeastOne] = 10_000,
    how: Translating | None = None,
    restart: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Translate a large file on many machines, or on all cores of one, with Ray.

    The file is divided into shards, which workers translate, each with one core and the model in its memory. A shard
    whose worker is lost is done by another one. OUTPUT appears when all is done, and is what `regard translate` writes.

    What is done is kept in a hidden directory beside OUTPUT: after Ctrl-C, a kill or a full disk the same command goes
    on where it was. On several machines, MODEL, INPUT and OUTPUT must be in folders that all of them see.

    Needs `pip install 'regard[ray]'`.

    Examples:

        regard bulk runs/mine --input web.en --output web.de

        regard bulk /shared/mine -i /shared/web.en -o /shared/web.de --address auto --workers 64

    Parameters
    ----------
    model
        Model directory, or that of a training run.
    input
        File to translate, one text a line; UTF-8, not packed.
    output
        File for the translations.
    workers
        How many work at once, each with a core. Default: one for each core of the machine or the cluster.
    address
        Ray cluster to work on; auto: the one that this machine belongs to. Default: this machine alone.
    shard_lines
        Lines of a shard. What an interruption loses is at most a shard of each worker.
    restart
        Begin anew, instead of going on with what an interrupted command has done.
    """
    from regard.cli.journaled import circumstances, two_files
    from regard.cli.lines import keep_apart
    from regard.cli.progress import progress
    from regard.pipelines.cluster import Work, carry_on, on_ray
    from regard.pipelines.journal import Terms
    from regard.pipelines.parts import parts
    from regard.pipelines.shards import cut

    if two_files(input, output) is None:
        raise UserError("regard bulk works from a file to a file: give files for --input and --output")
    keep_apart(output, input)
    run = on_ray(workers, address)
    task = Task(model.resolve(), (how or Translating()).resolved(), str(input))
    translator, settings = task.begin()
    makeup, here = task.how.makeup(task.model, translator), circumstances(translator)
    file = cut(input, shard_lines)
    job = {**makeup, **task.how.job(settings), "input": f"{file.size} {file.digest}", "shard_lines": shard_lines}
    log.info("%s lines, shards: %s; %s", f"{file.lines:,}", f"{len(file.shards):,}", translator.executor.about)
    with parts(output, job, here, restart) as done:
        begin = Beginning(task, Terms(makeup, here))
        work = Work(input.resolve(), str(input), done, begin, numbered=task.how.several(settings))
        with closing(carry_on(work, file.shards, run)) as counts:
            before = next(counts)
            with progress("translating", file.lines, before) as show:
                for lines in counts:
                    show(lines)
        unfinished = done.join(file.shards, output)
    if unfinished:
        log.warning("%d of %d translations did not end before their limit of length", unfinished, file.lines)


@dataclass(frozen=True)
class Task:
    """What is to be translated by what, and how: all that a process has to know to do it."""

    model: Path
    how: Translating
    name: str
    """Of the texts, in messages."""

    def begin(self) -> tuple[Translator, SearchSettings]:
        """The model, for one core, and how to search with it."""
        from regard.pipelines import Translator

        translator = Translator.load([self.model, *self.how.with_models], "cpu")
        return translator, self.how.prepare(translator)


@dataclass(frozen=True)
class Beginning:
    """Makes a process a worker of the job."""

    task: Task
    terms: Terms = field(repr=False)
    """What the job was begun with, as far as another machine may have it otherwise."""

    def __call__(self) -> Answerer:
        """Read the model.

        Raises:
            UserError: it is not there, or would give other translations than where the command was given.
        """
        import platform

        import torch

        from regard.cli.journaled import circumstances, told_by_number
        from regard.pipelines.journal import difference

        torch.set_num_threads(1)
        how, name = self.task.how, self.task.name
        translator, settings = self.task.begin()
        if said := difference(self.terms.job, how.makeup(self.task.model, translator)):
            raise UserError(
                f"{platform.node()}: would translate otherwise, as the job was begun {said}; all machines need "
                "the same model, and CPUs that can do the same: choose --executor and --precision that all have"
            )
        if said := difference(self.terms.circumstances, circumstances(translator)):
            log.warning("%s: the job was begun %s: its lines may be rounded otherwise", platform.node(), said)

        def answer(texts: list[str], numbers: list[int]) -> list[Answer]:
            with told_by_number(name, numbers):
                return list(how.answers(translator, settings, texts, name, patience=None))

        return answer
