"""`regard data back-translate` and `distill`: pairs to train on that a model writes one side of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from regard.cli.progress import progress
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.pipelines import Translator
    from regard.pipelines.synthesis import Outcome

T = TypeVar("T")


def back_translate(
    model: Path,
    /,
    *,
    target: Path,
    out: Path,
    beam: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 1,
    extra_tokens: int | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
) -> None:
    """Make sources for text in the target language, with a model that translates from target to source.

    Such a model is trained by `regard train --source text.de --target text.en`. The pairs go into OUT/source.txt (made
    by the model) and OUT/target.txt (your text); mix them in with a tag by `data.mix` of a recipe. The sources are
    drawn token by token, which teaches more than the best ones of a beam search.

    A line that gives no pair (empty, too long for the model, a translation that is empty or has no end) is left out,
    counted and said. Interrupted, the same command goes on where it was; OUT appears at the end.

    Examples:

        regard data back-translate runs/de-en --target news.de --out synthetic

        regard data back-translate runs/de-en --target news.de --out synthetic --beam 4

    Parameters
    ----------
    model
        Model directory, or that of a training run, for the direction from target to source.
    target
        Text in the target language, one sentence a line; plain or gzip, UTF-8.
    out
        Directory for the pairs; it must not be there yet.
    beam
        Search for the most probable source with so many hypotheses, instead of drawing.
    temperature
        Scores are divided by it before a token is drawn: below 1 the probable becomes more probable. Default: 1.
    top_k
        Draw from so many of the most probable tokens. Default: from all.
    top_p
        Draw from the most probable tokens that together have this probability. Default: 1, all.
    seed
        The same text with the same seed gives the same source; another seed another one.
    extra_tokens
        A source has at most so many tokens more than its target.
    batch_tokens
        Size of a batch: texts times beam times tokens of the longest. Less needs less memory.
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    """
    from regard.pipelines import synthesis
    from regard.search.settings import SamplingSettings
    from regard.text.lines import read_lines

    drawn = _given(temperature=temperature, top_k=top_k, top_p=top_p)
    if beam is not None and drawn:
        raise UserError(f"--beam searches and {_option(drawn)} draws; give one or the other")
    sampling = SamplingSettings.parse({**drawn, "seed": seed}, "command line") if beam is None else None
    options = _given(beam=beam, extra_tokens=extra_tokens, batch_tokens=batch_tokens)
    _write(
        model,
        device,
        out,
        lambda: read_lines(target),
        {"made": "sources", "sampling": None if sampling is None else sampling.model_dump(), "options": options},
        lambda translator, texts: synthesis.back_translate(
            translator, texts, sampling, name=str(target), nbest=1, **options
        ),
    )


def distill(
    model: Path,
    /,
    *,
    source: Path,
    target: Path | None = None,
    out: Path,
    beam: int | None = None,
    alpha: float | None = None,
    like: Literal["bleu", "chrf"] = "bleu",
    extra_tokens: int | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
) -> None:
    """Translate the source of a corpus with a large model, so that a small one can learn from what it says.

    What a model says is more regular than what people write, and easier to learn (sequence-level knowledge
    distillation). The pairs go into OUT/source.txt and OUT/target.txt. With --target, all translations of the beam are
    compared with the one that is there, and the one most like it is taken (sequence-level interpolation).

    A line that gives no pair (empty, too long for the model, a translation that is empty or has no end) is left out,
    counted and said. Interrupted, the same command goes on where it was; OUT appears at the end.

    Examples:

        regard data distill runs/large --source train.en --out distilled

        regard data distill runs/large --source train.en --target train.de --beam 8 --out distilled

    Parameters
    ----------
    model
        Model directory, or that of a training run.
    source
        Text to translate, one sentence a line; plain or gzip, UTF-8.
    target
        Its translations, line by line.
    out
        Directory for the pairs; it must not be there yet.
    beam
        Hypotheses kept at once. Default: the model's own.
    alpha
        Length penalty: 0 has none, larger values favour longer translations. Default: the model's own.
    like
        How a translation is compared with the one that is there: by BLEU or chrF of the sentence.
    extra_tokens
        A translation has at most so many tokens more than its source.
    batch_tokens
        Size of a batch: texts times beam times tokens of the longest. Less needs less memory.
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    """
    from regard.evaluation.metrics import SentenceScore
    from regard.pipelines import synthesis
    from regard.text.lines import read_lines, read_pairs

    options = _given(beam=beam, alpha=alpha, extra_tokens=extra_tokens, batch_tokens=batch_tokens)

    def lines() -> Iterator[tuple[str, str | None]]:
        if target is None:
            return ((text, None) for text in read_lines(source))
        return read_pairs(source, target)

    def make(translator: Translator, pairs: Iterable[tuple[str, str | None]]) -> Iterator[Outcome]:
        nbest = 1 if target is None else beam or translator.settings.beam
        likeness = SentenceScore(like, translator.languages.target)
        return synthesis.distill(translator, pairs, likeness, name=str(source), nbest=nbest, **options)

    _write(model, device, out, lines, {"made": "targets", "like": like if target else None, "options": options}, make)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _option(options: dict[str, Any]) -> str:
    return f"--{next(iter(options)).replace('_', '-')}"


def _write(
    model: Path,
    device: str | None,
    out: Path,
    lines: Callable[[], Iterator[T]],
    job: dict[str, Any],
    make: Callable[[Translator, Iterable[T]], Iterator[Outcome]],
) -> None:
    """Make a pair of each line, from where an earlier sitting of the same job stopped."""
    from regard.cli.loading import load_for_bulk
    from regard.data.growing import growing_pairs
    from regard.pipelines.directory import fingerprint
    from regard.search.engine import WINDOW

    translator = load_for_bulk(model, device)
    # All is read once before: a bad line is known now, and not after hours.
    digest, total = hashlib.sha256(), 0
    for line in lines():
        digest.update(f"{line!r}\n".encode())
        total += 1
    with growing_pairs(out, {**job, "model": fingerprint(model), "text": digest.hexdigest()}) as writer:
        if writer.made.read:
            print(f"going on after line {writer.made.read:,} of {total:,}")
        with progress("translating") as show:
            for outcome in make(translator, islice(lines(), writer.made.read, None)):
                writer.add(outcome)
                show(writer.made.read)
                if writer.made.read % WINDOW == 0:  # what is translated together is saved together
                    writer.save()
        if not writer.made.written:
            raise UserError(f"{out}: not written, for no line gave a pair ({writer.made})")
    print(f"{out}: {writer.made}")
