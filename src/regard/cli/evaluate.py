"""`regard evaluate`: translations scored against references."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from regard.errors import UserError
from regard.evaluation.metrics import MetricSettings

METRICS = MetricSettings()

if TYPE_CHECKING:
    from regard.evaluation.metrics import Comparison, Score


def evaluate(
    model: Path | None = None,
    /,
    *,
    source: Path | None = None,
    reference: Annotated[list[Path], Parameter(negative="")],
    hypotheses: Path | None = None,
    against: Path | None = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    beam: int | None = None,
    alpha: float | None = None,
    device: str | None = None,
    settings: Annotated[MetricSettings, Parameter(name="*")] = METRICS,
) -> None:
    """Translate a test set and score it with BLEU and chrF, or score translations that are there already.

    Each score is printed with its sacreBLEU signature. With --against, the translations of another system are scored
    too, and the p-value of a paired bootstrap tells how likely the difference is by chance.

    Examples:

        regard evaluate runs/mine --source test.en --reference test.de --output mine.de

        regard evaluate --hypotheses mine.de --reference test.de --against other.de

        regard evaluate runs/zh --source test.en --reference test.zh --language zh

    Parameters
    ----------
    model
        Model directory, or that of a training run.
    source
        Text to translate, line by line; plain or gzip, UTF-8.
    reference
        Reference translation, line by line. Give the option several times for several references.
    hypotheses
        Translations to score, instead of a model and --source.
    against
        Another system's translations, to compare with.
    output
        File for the translations of the model.
    beam
        Hypotheses kept at once. Default: as stored with the model.
    alpha
        Length penalty. Default: as stored with the model.
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    """
    from regard.cli.lines import keep_apart
    from regard.evaluation.metrics import compare, corpus_scores
    from regard.text.lines import read_lines

    of_model = {"--source": source, "--output": output, "--beam": beam, "--alpha": alpha, "--device": device}
    if hypotheses is not None and (model is not None or any(value is not None for value in of_model.values())):
        raise UserError(
            f"--hypotheses scores what is translated already: leave out the model and {', '.join(of_model)}"
        )
    text = source if hypotheses is None else hypotheses
    if text is None or (model is None and hypotheses is None):
        raise UserError("evaluate what? give a model and --source, or --hypotheses (regard evaluate --help)")
    keep_apart(output, source, *reference)
    translations = list(read_lines(text))
    references = [list(read_lines(path)) for path in reference]
    others = None if against is None else list(read_lines(against))
    _check_counts(text, translations, reference, references)
    if against is not None and others is not None:
        _check_counts(text, translations, [against], [others])
    if model is not None:
        options: dict[str, Any] = {
            name: value for name, value in (("beam", beam), ("alpha", alpha)) if value is not None
        }
        translations, language = _translate(model, translations, output, device, options)
        if settings.language is None:
            settings = settings.model_copy(update={"language": language})
    if others is None:
        for score in corpus_scores(translations, references, settings):
            print(_score_line(score))
    else:
        for comparison in compare(translations, others, references, settings):
            print(_comparison_line(comparison))


def _check_counts(
    source: Path, lines: Sequence[str], paths: Sequence[Path], references: Sequence[Sequence[str]]
) -> None:
    """Wrong files are known before minutes of translating."""
    for path, reference in zip(paths, references, strict=True):
        if len(reference) != len(lines):
            raise UserError(
                f"{source} has {len(lines)} lines and {path} has {len(reference)}: "
                "line n of one must belong to line n of the other"
            )


def _translate(
    model: Path, lines: Sequence[str], output: Path | None, device: str | None, options: dict[str, Any]
) -> tuple[list[str], str | None]:
    """The translations, and the language that the model translates into, if it knows."""
    from contextlib import ExitStack

    from regard.cli.lines import line_writer
    from regard.cli.loading import load_for_bulk
    from regard.cli.progress import progress
    from regard.text.lines import one_line

    translator = load_for_bulk(model, device)
    translations = []
    with progress("translating") as show, ExitStack() as stack:
        write = stack.enter_context(line_writer(output)) if output is not None else None
        for translation in translator.stream(lines, patience=None, **options):
            text = one_line(translation.best.text)
            translations.append(text)
            if write is not None:
                write(text)
            show(len(translations))
    return translations, translator.languages.target


def _score_line(score: Score) -> str:
    return f"{score.name:6} {score.value:6.2f}   {score.signature}"


def _comparison_line(result: Comparison) -> str:
    return (
        f"{result.name:6} {result.value:6.2f} ± {result.interval:.2f}   "
        f"against {result.other:6.2f} ± {result.other_interval:.2f}   p = {result.p_value:.4f}   {result.signature}"
    )
