"""`regard generate`: text that goes on from a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from regard.cli.starting import importing

if TYPE_CHECKING:
    from regard.pipelines.generator import TextGenerator
    from regard.search.generation import Generation


def generate(
    model: Path,
    /,
    *prompt: str,
    input: Annotated[Path | None, Parameter(alias="-i")] = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    epsilon: float | None = None,
    seed: int | None = None,
    n: int | None = None,
    beam: int | None = None,
    alpha: float | None = None,
    contrastive: float | None = None,
    candidates: int | None = None,
    repetition_penalty: float | None = None,
    no_repeat: int | None = None,
    stop: Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="", show_default=False)] = (),
    endless: Annotated[bool, Parameter(negative="")] = False,
    sinks: int | None = None,
    recent: int | None = None,
    echo: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    batch_tokens: int | None = None,
    device: str | None = None,
) -> None:
    r"""Continue texts with a language model.

    One prompt is continued on screen as the model writes. For files and standard input, each line is a prompt and gives
    one line of output, in order, in which a line feed of the text is written as the two characters `\n`; --json gives
    texts exactly. Options that are not given are those stored with the model.

    Examples:

        regard generate runs/shakespeare "ROMEO:" --temperature 0.8 --seed 1

        regard generate runs/lm "Once upon a time" --max-tokens 100 --stop "." --n 3

        regard generate runs/lm --input prompts.txt --output texts.txt --temperature 0

        regard generate runs/lm --input prompts.txt --n 4 --json > texts.jsonl

    Parameters
    ----------
    model
        Model directory, or that of a training run.
    prompt
        Texts to continue, instead of a file or standard input.
    input
        File with a prompt a line; plain or gzip, UTF-8.
    output
        File for the texts. It appears when all are done. Default: standard output.
    max_tokens
        New tokens at most.
    min_tokens
        The end may not come before so many.
    temperature
        How bold: below 1 keeps to what is probable, 0 always takes the most probable token.
    top_k
        Draw from so many of the most probable tokens; 0: from all.
    top_p
        Draw from the most probable tokens that together have this probability.
    min_p
        Draw from tokens at least so probable, as a share of the most probable one's probability.
    epsilon
        Draw from tokens at least so probable.
    seed
        The same prompt with the same seed gives the same text, whatever stands beside it.
    n
        Texts for each prompt.
    beam
        Above 1: beam search with so many hypotheses, instead of drawing.
    alpha
        Length penalty of beam search.
    contrastive
        Above 0: contrastive search, with this weight against repeating what has been said.
    candidates
        How many tokens contrastive search chooses from.
    repetition_penalty
        Above 1: tokens that have occurred become less probable.
    no_repeat
        No so many tokens in a row occur twice.
    stop
        End the text before this one; may be given several times.
    endless
        Go on beyond the model's length, up to --max-tokens: the first tokens and the latest are remembered.
    sinks
        First tokens that endless text remembers.
    recent
        Latest tokens that it remembers. Default: as many as the model's length allows.
    echo
        Put the prompt before its text.
    as_json
        Give a JSON object a line for each text: prompt, text, ids, log_probability, and stopped, which is end, stop (a
        stop string came), length, blocked (no token was allowed) or refused (the prompt is too long).
    batch_tokens
        Size of a batch: texts times tokens of the longest. Less needs less memory.
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    """
    with importing():
        from regard.cli.inputs import inputs
        from regard.cli.lines import given_text, line_writer
        from regard.cli.loading import side_by_side
        from regard.pipelines.generator import TextGenerator

    given = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "epsilon": epsilon,
        "seed": seed,
        "n": n,
        "beam": beam,
        "alpha": alpha,
        "contrastive": contrastive,
        "candidates": candidates,
        "repetition_penalty": repetition_penalty,
        "no_repeat": no_repeat,
        "stop": tuple(map(given_text, stop)) or None,
        "endless": endless or None,
        "sinks": sinks,
        "recent": recent,
        "batch_tokens": batch_tokens,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    texts, name, patience = inputs(prompt, input, output, "Type a line to have it continued")
    generator = TextGenerator.load(model, device)
    settings = generator.options(options)
    if len(prompt) == 1 and output is None and not as_json and settings.n == settings.beam == 1:
        _show(generator, given_text(prompt[0]), options, echo)
        return
    results = side_by_side(generator).each(texts, patience=patience, name=name, **options)
    with line_writer(output) as write:
        for result in results:
            for line in _objects(result) if as_json else _lines(result, echo):
                write(line)


def _lines(result: Generation, echo: bool) -> Iterator[str]:
    for each in result.continuations:
        yield ((result.prompt if echo else "") + each.text).replace("\n", "\\n")


def _objects(result: Generation) -> Iterator[str]:
    for each in result.continuations:
        yield json.dumps({"prompt": result.prompt, **vars(each)}, ensure_ascii=False)


def _show(generator: TextGenerator, prompt: str, options: dict[str, Any], echo: bool) -> None:
    """Print the text of one prompt while it is written, line feeds and all."""
    pieces = generator.stream(prompt, **options)
    if echo:
        print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
