"""`regard bulk`: a large file, translated by many cores or machines."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from regard.cli.searching import Searching
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
    beam: int | None = None,
    alpha: float | None = None,
    nbest: int | None = None,
    extra_tokens: int | None = None,
    searching: Searching | None = None,
    with_models: Annotated[
        tuple[Path, ...], Parameter(name="--with", consume_multiple=False, negative="", show_default=False)
    ] = (),
    scores: Annotated[bool, Parameter(negative="")] = False,
    split: Literal["long", "always", "never"] | None = None,
    split_tokens: int | None = None,
    retry: Annotated[bool | None, Parameter(negative="--no-retry")] = None,
    batch_tokens: int | None = None,
    executor: Literal["auto", "native", "torch"] = "auto",
    precision: Literal["auto", "float32", "int8"] = "auto",
    shortlist: bool = True,
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
    beam
        Hypotheses kept at once: more is slower and mostly better; 1 is greedy.
    alpha
        Length penalty: 0 has none, larger values favour longer translations.
    nbest
        Hypotheses to show for each line.
    extra_tokens
        A translation has at most so many tokens more than its source.
    with_models
        Another model with the same vocabulary, whose probabilities are averaged with MODEL's; may be given several
        times.
    scores
        Put the score (log-probability with length penalty) and a tab before each translation.
    split
        Which lines are translated sentence by sentence: those that are long, all (always) or none (never).
    split_tokens
        A line with more tokens than this is long.
    retry
        Search again for what comes out wrong.
    batch_tokens
        Size of a batch: texts times beam times tokens of the longest. Less needs less memory.
    executor
        What computes: the compiled decoder (native) or PyTorch (torch). Default: the fastest that can.
    precision
        Of the compiled decoder: int8 is faster on most CPUs and costs next to no quality. Default: the faster one.
    shortlist
        Choose among the tokens that may translate those of the source, where the model has a list of them: faster.
    restart
        Begin anew, instead of going on with what an interrupted command has done.
    """
    from regard.cli.journaled import circumstances, two_files
    from regard.cli.progress import progress
    from regard.pipelines.cluster import Work, carry_on, on_ray
    from regard.pipelines.journal import Terms
    from regard.pipelines.parts import parts
    from regard.pipelines.shards import cut

    if two_files(input, output) is None:
        raise UserError("regard bulk works from a file to a file: give files for --input and --output")
    run = on_ray(workers, address)
    given: dict[str, Any] = {"beam": beam, "alpha": alpha, "nbest": nbest, "extra_tokens": extra_tokens}
    given |= {"split": split, "split_tokens": split_tokens, "retry": retry, "batch_tokens": batch_tokens}
    searching = searching or Searching()
    options = {name: value for name, value in given.items() if value is not None} | searching.settings()
    models = tuple(path.resolve() for path in (model, *with_models))
    how = Translating(models, executor, precision, shortlist, options, searching, scores, str(input))
    translator = how.load()
    settings = how.settings(translator)
    makeup, here = how.makeup(translator), circumstances(translator)
    file = cut(input, shard_lines)
    job = {**makeup, **settings.model_dump(), "searching": asdict(searching), "scores": scores}
    job |= {"input": f"{file.size} {file.digest}", "shard_lines": shard_lines}
    log.info("%s lines, shards: %s; %s", f"{file.lines:,}", f"{len(file.shards):,}", translator.executor.about)
    with parts(output, job, here, restart) as done:
        begin = Beginning(how, Terms(makeup, here))
        work = Work(input.resolve(), str(input), done, begin, numbered=how.several(settings))
        with closing(carry_on(work, file.shards, run)) as counts:
            before = next(counts)
            with progress("translating", file.lines, before) as show:
                for lines in counts:
                    show(lines)
        unfinished = done.join(file.shards, output)
    if unfinished:
        log.warning("%d of %d translations did not end before their limit of length", unfinished, file.lines)


@dataclass(frozen=True)
class Translating:
    """How texts are translated: all that a process has to know to do it."""

    models: tuple[Path, ...]
    executor: Literal["auto", "native", "torch"]
    precision: Literal["auto", "float32", "int8"]
    shortlist: bool
    options: Mapping[str, Any]
    searching: Searching
    scores: bool
    name: str
    """Of the texts, in messages."""

    def load(self) -> Translator:
        """The model, for one core."""
        from regard.pipelines import Translator

        return Translator.load(self.models, "cpu").use(self.executor, self.precision, self.shortlist)

    def makeup(self, translator: Translator) -> dict[str, object]:
        """What has to be the same wherever one job is worked on."""
        from regard.cli.journaled import executor_of
        from regard.pipelines.directory import fingerprint

        model, *others = map(fingerprint, self.models)
        return {"model": model, "with": others, "executor": executor_of(translator)}

    def settings(self, translator: Translator) -> SearchSettings:
        """Those of the model, with the options laid on top."""
        from regard.search.settings import SearchSettings

        return SearchSettings.parse({**translator.settings.model_dump(), **self.options}, "search options")

    def several(self, settings: SearchSettings) -> bool:
        """Whether a text may have several translations."""
        sampling = self.searching.sampling()
        return settings.nbest > 1 or (sampling is not None and sampling.n > 1 and self.searching.mbr is None)

    def answers(self, translator: Translator, texts: Iterable[str]) -> Iterator[Answer]:
        """The translations of each text as lines."""
        from regard.cli.translate import lines_of
        from regard.pipelines.journal import Answer

        several = self.several(self.settings(translator))
        requests, sampling = self.searching.requests(texts), self.searching.sampling()
        how: dict[str, Any] = {"sampling": sampling, "mbr": self.searching.mbr, "patience": None, "name": self.name}
        for translation in translator.stream(requests, **how, **self.options):
            yield Answer(tuple(lines_of(translation, several, self.scores)), translation.best.finished)


@dataclass(frozen=True)
class Beginning:
    """Makes a process a worker of the job."""

    how: Translating
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
        translator = self.how.load()
        if said := difference(self.terms.job, self.how.makeup(translator)):
            raise UserError(
                f"{platform.node()}: would translate otherwise, as the job was begun {said}; all machines need "
                "the same model, and CPUs that can do the same: choose --executor and --precision that all have"
            )
        if said := difference(self.terms.circumstances, circumstances(translator)):
            log.warning("%s: the job was begun %s: its lines may be rounded otherwise", platform.node(), said)

        def answer(texts: list[str], numbers: list[int]) -> list[Answer]:
            with told_by_number(self.how.name, numbers):
                return list(self.how.answers(translator, texts))

        return answer
