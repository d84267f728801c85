"""`regard fill`: the tokens behind masks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.starting import importing
from regard.errors import UserError


def fill(
    model: Path,
    /,
    *text: str,
    input: Annotated[Path | None, Parameter(alias="-i")] = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    best: int = 5,
    texts: Annotated[bool, Parameter(negative="")] = False,
    device: str | None = None,
) -> None:
    """Guess what stands behind each [MASK] of a text, with a masked language model.

    Each guess is a line: number of the input line, number of its mask, probability and token, separated by tabs; the
    most probable of a mask first. With --texts each line of input gives one line of output instead, with the most
    probable token in place of each mask. A mask (`[MASK]` or `<mask>`) stands for one token; several masks of a line
    are guessed at once.

    Examples:

        regard fill runs/encoder "The [MASK] could not be found."

        regard fill runs/encoder "Turn [MASK] the [MASK]" --best 3

        regard fill runs/encoder --input gaps.txt --output filled.txt --texts

    Parameters
    ----------
    model
        Model directory, or that of a training run.
    text
        Texts with masks, instead of a file or standard input.
    input
        File with a text a line; plain or gzip, UTF-8.
    output
        File for the result. It appears when all is done. Default: standard output.
    best
        Guesses for each mask.
    texts
        Give the whole texts, filled.
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    """
    if best < 1:
        raise UserError(f"--best {best}: should be at least 1")
    with importing():
        from regard.cli.inputs import inputs
        from regard.cli.lines import line_writer
        from regard.pipelines.filler import MaskFiller

    given, name, patience = inputs(text, input, output, "Type a line with [MASK] to have it filled")
    filler = MaskFiller.load(model, device)
    with line_writer(output) as write:
        for number, filled in enumerate(filler.stream(given, best, patience=patience, name=name), start=1):
            if texts:
                write(filled.text)
                continue
            for place, mask in enumerate(filled.masks, start=1):
                for guess in mask:
                    write(f"{number}\t{place}\t{guess.probability:.4f}\t{guess.text}")
