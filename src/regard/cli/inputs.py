"""The texts that a command is given: as arguments, in a file, or on standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from regard.errors import UserError


def inputs(
    text: tuple[str, ...], file: Path | None, output: Path | None, invitation: str
) -> tuple[Iterable[str], str, float | None]:
    """The texts, what to call them in warnings, and the patience of a stream over them.

    `invitation` is what a person at a terminal reads who gave no text.

    Raises:
        UserError: there are texts and a file, or the file is also the output.
    """
    from regard.cli.lines import given_text, keep_apart, standard_input
    from regard.pipelines.directory import PATIENCE
    from regard.text.lines import read_lines

    if text and file is not None:
        raise UserError("give either texts or --input FILE, not both")
    if text:
        return [given_text(argument) for argument in text], "text", None
    if file is not None:
        keep_apart(output, file)
        return read_lines(file, bad="replace"), str(file), None  # a file does not wait for anyone: full windows
    if sys.stdin.isatty():
        print(f"{invitation}; Ctrl-D ends.", file=sys.stderr)
    return standard_input(), "standard input", PATIENCE
