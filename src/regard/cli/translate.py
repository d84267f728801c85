"""`regard translate`: text in, translations out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from regard.cli.searching import Searching
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.pipelines.journal import Answer
    from regard.search.engine import Translation
    from regard.search.settings import SamplingSettings

log = logging.getLogger("regard")


def translate(
    model: Path,
    /,
    *text: str,
    input: Annotated[Path | None, Parameter(alias="-i")] = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    beam: int | None = None,
    alpha: float | None = None,
    nbest: int | None = None,
    extra_tokens: int | None = None,
    searching: Searching | None = None,
    with_models: Annotated[
        tuple[Path, ...], Parameter(name="--with", consume_multiple=False, negative="", show_default=False)
    ] = (),
    scores: Annotated[bool, Parameter(negative="")] = False,
    align: Annotated[bool, Parameter(negative="")] = False,
    split: Literal["long", "always", "never"] | None = None,
    split_tokens: int | None = None,
    retry: Annotated[bool | None, Parameter(negative="--no-retry")] = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    executor: Literal["auto", "native", "torch"] = "auto",
    precision: Literal["auto", "float32", "int8"] = "auto",
    shortlist: bool = True,
    invariant: Annotated[bool, Parameter(negative="")] = False,
    explain: Annotated[bool, Parameter(negative="")] = False,
    restart: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Translate text, a file, or standard input line by line.

    Each line of input gives one line of output, in order; an empty line stays empty. From standard input, what has
    arrived is translated at once. Options that are not given are those stored with the model.

    A line that is longer than the model knows is translated sentence by sentence. Translations that loop, are empty,
    copy their source or have no end are searched for again; what stays wrong is named on standard error.

    From --input to --output, what is done is kept beside OUTPUT: after Ctrl-C, a kill or a full disk the same command
    goes on where it was, and OUTPUT becomes what it would have been. A line that stands there several times is
    translated once.

    With --nbest or --samples above 1, each translation is a line: number of the input line, rank, score and text,
    separated by tabs.

    Examples:

        regard translate runs/mine "A dog runs." "Two men talk."

        regard translate runs/mine --input test.en --output test.de

        cat test.en | regard translate runs/mine --beam 1 | less

        regard translate runs/mine --input book.en --output book.de --split always

        regard translate runs/mine "A dog runs." --prefix "Ein H" --forbid Katze --must "rennt|läuft"

        regard translate runs/mine "A dog runs." --samples 32 --epsilon 0.02 --seed 1 --mbr chrf

        regard translate runs/one "A dog runs." --with runs/two --with runs/three

        regard translate runs/mine --input test.en --output test.de.aligned --align

    Parameters
    ----------
    model
        Model directory, or that of a training run.
    text
        Texts to translate, instead of a file or standard input.
    input
        File to translate, one text a line; plain or gzip, UTF-8.
    output
        File for the translations. It appears when all are done. Default: standard output.
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
    align
        Put a tab after each translation, and which words stand for each other: 0-0 1-2 links the first words of both
        texts, and the second of the source with the third of the translation.
    split
        Which lines are translated sentence by sentence: those that are long, all (always) or none (never).
    split_tokens
        A line with more tokens than this is long. Default: 256 from one language to another, and never more than the
        model can read.
    retry
        Search again for what comes out wrong.
    batch_tokens
        Size of a batch: texts times beam times tokens of the longest. Less needs less memory.
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    executor
        What computes: the compiled decoder (native) or PyTorch (torch). Default: the fastest that can.
    precision
        Of the compiled decoder: int8 is faster on most CPUs and costs next to no quality. Default: the faster one.
    shortlist
        Choose among the tokens that may translate those of the source, where the model has a list of them: faster.
    invariant
        Give the same bits for a line whatever stands beside it, and on any number of threads; says what this costs.
    explain
        Say on standard error what computes, and why.
    restart
        From --input to --output: begin anew, instead of going on with what an interrupted command has done.
    """
    from regard.cli.inputs import inputs
    from regard.cli.journaled import circumstances, executor_of, journaled
    from regard.cli.lines import line_writer
    from regard.cli.loading import load_for_bulk
    from regard.evaluation.alignment import with_alignments
    from regard.pipelines.directory import fingerprint
    from regard.pipelines.journal import Answer, draft_of
    from regard.search.settings import SearchSettings

    texts, name, patience = inputs(text, input, "Type a line to have it translated")
    searching = searching or Searching()
    sampling = searching.sampling()
    files = _to_go_on_with(input, output, sampling, restart)
    translator = load_for_bulk([model, *with_models], device).use(executor, precision, shortlist, invariant)
    if explain or invariant:
        log.info(translator.explain())
    given: dict[str, Any] = {"beam": beam, "alpha": alpha, "nbest": nbest, "extra_tokens": extra_tokens}
    given |= {"split": split, "split_tokens": split_tokens, "retry": retry, "batch_tokens": batch_tokens}
    options = {name: value for name, value in given.items() if value is not None} | searching.settings()
    settings = SearchSettings.parse({**translator.settings.model_dump(), **options}, "search options")
    many = settings.nbest > 1 or (sampling is not None and sampling.n > 1 and searching.mbr is None)
    if align and many:
        raise UserError("--align goes with one translation of each line; leave out --nbest and --samples, or --align")

    def translated(texts: Iterable[str]) -> Iterator[Translation]:
        how: dict[str, Any] = {"sampling": sampling, "mbr": searching.mbr, "patience": patience, "name": name}
        return translator.stream(searching.requests(texts), **how, **options)

    def answers(texts: Iterable[str]) -> Iterator[Answer]:
        if not align:
            for translation in translated(texts):
                yield Answer(tuple(lines_of(translation, many, scores)), translation.best.finished)
            return
        link = partial(translator.align_stream, patience=patience, name=name)
        for translation, alignment in with_alignments(texts, translated, link):
            (line,) = lines_of(translation, many, scores)
            yield Answer((f"{line}\t{alignment}",), translation.best.finished)

    found: AbstractContextManager[Iterator[Answer]]
    if files is not None:
        job = {"model": fingerprint(model), "executor": executor_of(translator), **settings.model_dump()}
        job |= {"with": list(map(fingerprint, with_models)), "searching": asdict(searching), "scores": scores}
        job["align"] = align
        found = journaled(*files, texts, lambda new, _: answers(new), job, circumstances(translator), restart)
    elif input is not None and (output is not None or not sys.stdout.isatty()):
        found = nullcontext(_watched(answers(texts)))
    else:
        found = nullcontext(answers(texts))
    count = unfinished = 0
    with found as lines, line_writer(output, None if files is None else draft_of(files[1])) as write:
        for count, answer in enumerate(lines, start=1):
            unfinished += not answer.finished
            for line in answer.lines:
                write(f"{count}\t{line}" if many else line)
    if unfinished:
        log.warning("%d of %d translations did not end before their limit of length", unfinished, count)


def _to_go_on_with(
    source: Path | None, output: Path | None, sampling: SamplingSettings | None, restart: bool
) -> tuple[Path, Path] | None:
    """The files of a job that an interruption does not end; None where there is no such job."""
    from regard.cli.journaled import two_files

    chance = sampling is not None and sampling.seed is None  # what is drawn again would be something else
    files = None if chance else two_files(source, output)
    if restart and files is None:
        wanted = "--seed" if chance else "--input FILE and --output FILE"
        raise UserError(f"--restart goes with {wanted}: nothing else can be gone on with")
    return files


def lines_of(translation: Translation, many: bool, scores: bool) -> Iterator[str]:
    if many:
        for rank, candidate in enumerate(translation.candidates, start=1):
            yield f"{rank}\t{candidate.score:.4f}\t{candidate.text}"
    elif scores:
        yield f"{translation.best.score:.4f}\t{translation.best.text}"
    else:
        yield translation.best.text


def _watched(answers: Iterator[Answer]) -> Iterator[Answer]:
    from regard.cli.progress import progress

    with progress("translating") as show:
        for lines, answer in enumerate(answers, start=1):
            yield answer
            show(lines)
