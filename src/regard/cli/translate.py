"""`regard translate`: text in, translations out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from regard.cli.starting import importing
from regard.cli.translating import Translating
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.pipelines.journal import Answer
    from regard.search.settings import SamplingSettings

log = logging.getLogger("regard")


def translate(
    model: Path,
    /,
    *text: str,
    input: Annotated[Path | None, Parameter(alias="-i")] = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    how: Translating | None = None,
    device: str | None = None,
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
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    invariant
        Give the same bits for a line whatever stands beside it, and on any number of threads; says what this costs.
    explain
        Say on standard error what computes, and why.
    restart
        From --input to --output: begin anew, instead of going on with what an interrupted command has done.
    """
    with importing():
        from regard.cli.inputs import inputs
        from regard.cli.journaled import circumstances, journaled
        from regard.cli.lines import line_writer
        from regard.cli.loading import load_for_bulk
        from regard.pipelines.journal import draft_of

    texts, name, patience = inputs(text, input, output, "Type a line to have it translated")
    how = how or Translating()
    files = _to_go_on_with(input, output, how.searching.sampling(), restart)
    translator = load_for_bulk([model, *how.with_models], device)
    settings = how.prepare(translator, invariant)
    many = how.several(settings)
    if explain or invariant:
        log.info(translator.explain())

    def answers(texts: Iterable[str]) -> Iterator[Answer]:
        return how.answers(translator, settings, texts, name, patience)

    found: AbstractContextManager[Iterator[Answer]]
    if files is not None:
        job = {**how.makeup(model, translator), **how.job(settings)}
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


def _watched(answers: Iterator[Answer]) -> Iterator[Answer]:
    from regard.cli.progress import progress

    with progress("translating") as show:
        for lines, answer in enumerate(answers, start=1):
            yield answer
            show(lines)
