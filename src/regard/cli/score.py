"""`regard score`: how probable a model finds given translations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.starting import importing
from regard.errors import UserError


def score(
    model: Path,
    /,
    *,
    source: Path,
    target: Path,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    batch_tokens: int = 4096,
    device: str | None = None,
) -> None:
    """Give the log-probability of each line of --target as the translation of that line of --source.

    One line for each pair: natural log-probability and number of tokens, separated by a tab; the end token counts in
    both. Totals and the perplexity a token follow on standard error.

    Example:

        regard score runs/mine --source test.en --target test.de > scores.tsv

    Parameters
    ----------
    model
        Model directory, or that of a training run.
    source
        Source text, line by line; plain or gzip, UTF-8.
    target
        Its translations, line by line.
    output
        File for the scores. Default: standard output.
    batch_tokens
        Size of a batch: pairs times tokens of the longer side. It changes speed and memory, not the scores.
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    """
    if batch_tokens < 1:
        raise UserError(f"--batch-tokens {batch_tokens}: should be 1 or more")
    with importing():
        from regard.cli.lines import keep_apart, line_writer
        from regard.cli.loading import load_for_bulk
        from regard.evaluation.scoring import Total
        from regard.text.lines import read_pairs

    keep_apart(output, source, target)
    translator = load_for_bulk(model, device)
    pairs = read_pairs(source, target)
    total = Total()
    with line_writer(output) as write:
        for pair in translator.score_stream(pairs, batch_tokens, str(target)):
            total.add(pair)
            write(f"{pair.log_probability:.4f}\t{pair.tokens}")
    left_out = f"; {total.left_out:,} too long to be scored" if total.left_out else ""
    print(
        f"{total.pairs:,} pairs, {total.tokens:,} tokens: log-probability {total.log_probability:.2f}, "
        f"perplexity {total.perplexity:.3f} a token{left_out}",
        file=sys.stderr,
    )
