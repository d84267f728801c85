"""Scores of translations against references by sacreBLEU, each with the signature that makes it comparable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from regard.errors import UserError
from regard.evaluation.answers import EditRate, ExactMatch
from regard.settings import Settings

Name = Literal["bleu", "chrf", "ter", "exact", "edit"]
Tokenize = Literal["13a", "zh", "char", "intl", "ja-mecab", "ko-mecab", "none"]
NO_SPACES = {"ja", "km", "lo", "my", "th"}


class MetricSettings(Settings):
    """Which scores, and how they are computed; all of it stands in their signatures."""

    metrics: tuple[Name, ...] = Field(("bleu", "chrf"), min_length=1)
    """Which of BLEU, chrF, TER, and for answers that are right or wrong, such as pronunciations: exact, the share of
    lines that equal a reference, and edit, the tokens to change on the way to the nearest reference per token of it."""
    language: str | None = None
    """The target language, such as de or zh-Hans: decides how BLEU cuts text into words."""
    tokenize: Tokenize | None = None
    """Decides that instead: `zh` for Chinese, `char` for others without spaces, `none` for text tokenised already."""
    lowercase: bool = False
    """Take upper case for lower case. TER does so always."""
    chrf_word_order: int = Field(0, ge=0, le=6)
    """Longest word n-gram of chrF; 2 gives chrF++."""

    @property
    def tokenization(self) -> Tokenize:
        """`tokenize`, or what suits the language; 13a, sacreBLEU's own choice, for most."""
        code = (self.language or "").replace("_", "-").partition("-")[0].lower()
        by_language: Tokenize = "zh" if code in {"zh", "yue"} else "char" if code in NO_SPACES else "13a"
        return self.tokenize or by_language


@dataclass(frozen=True)
class Score:
    """One score of a whole corpus, such as BLEU 35.7."""

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """One score of two systems, and how likely a difference like theirs is by chance."""

    name: str
    value: float
    other: float
    p_value: float
    """Paired bootstrap (Koehn 2004): below 0.05 counts as a difference by custom."""
    interval: float
    """Half the width of the 95% confidence interval of `value`."""
    other_interval: float
    signature: str


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], settings: MetricSettings | None = None
) -> list[Score]:
    """The scores of `hypotheses` in the order of `settings.metrics`.

    Args:
        hypotheses: one translation a line.
        references: one or more reference translations of the whole text, each as long as `hypotheses`.

    Raises:
        UserError: there is no line, or numbers of lines differ.
    """
    _check_lines({"the translation": hypotheses}, references)
    scores = []
    for metric in _metrics(settings or MetricSettings()).values():
        result = metric.corpus_score(hypotheses, references)
        scores.append(Score(result.name, result.score, str(metric.get_signature())))
    return scores


class SentenceScore:
    """How like one sentence is to another, from 0 to 100: good to choose by, and no measure of a system."""

    def __init__(self, name: Literal["bleu", "chrf"] = "bleu", language: str | None = None) -> None:
        """BLEU counts the n-grams that a short sentence has (effective order), and never gives 0 for one too few."""
        settings = MetricSettings(metrics=(name,), language=language)
        bleu = BLEU(tokenize=settings.tokenization, effective_order=True)
        self._metric: BLEU | CHRF = bleu if name == "bleu" else CHRF()

    def __call__(self, hypothesis: str, reference: str) -> float:
        return float(self._metric.sentence_score(hypothesis, [reference]).score)


def compare(
    hypotheses: Sequence[str],
    others: Sequence[str],
    references: Sequence[Sequence[str]],
    settings: MetricSettings | None = None,
    samples: int = 1000,
) -> list[Comparison]:
    """Compare two systems' translations by paired bootstrap resampling.

    The resamples are the same each time (seed 12345, or the environment's SACREBLEU_SEED).

    Raises:
        UserError: there is no line, or numbers of lines differ.
    """
    _check_lines({"the translation": hypotheses, "the other translation": others}, references)
    test = PairedTest(
        [("other", others), ("system", hypotheses)],
        _metrics(settings or MetricSettings()),
        references,
        test_type="bs",
        n_samples=samples,
    )
    signatures, results = test()
    comparisons = []
    for name, signature in signatures.items():
        other, system = (result for result in results[name] if isinstance(result, Result))
        comparisons.append(
            Comparison(
                name,
                system.score,
                other.score,
                # Of equal scores sacreBLEU says the smallest p; but no difference is never a significant one.
                p_value=1.0 if system.score == other.score else _given(system.p_value),
                interval=_given(system.ci),
                other_interval=_given(other.ci),
                signature=str(signature),
            )
        )
    return comparisons


def _given(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _metrics(settings: MetricSettings) -> dict[str, Metric]:
    try:
        known = {
            "bleu": BLEU(tokenize=settings.tokenization, lowercase=settings.lowercase),
            "chrf": CHRF(word_order=settings.chrf_word_order, lowercase=settings.lowercase),
            "ter": TER(),
            "exact": ExactMatch(settings.lowercase),
            "edit": EditRate(settings.lowercase),
        }
    except (ImportError, RuntimeError):
        language = settings.tokenization.partition("-")[0]
        raise UserError(
            f"tokenize {settings.tokenization} needs a further package: pip install 'sacrebleu[{language}]'; "
            "or choose char, which needs none"
        ) from None
    return {name: known[name] for name in settings.metrics}


def _check_lines(systems: dict[str, Sequence[str]], references: Sequence[Sequence[str]]) -> None:
    names = ["the reference"] if len(references) == 1 else [f"reference {n}" for n in range(1, len(references) + 1)]
    counts = {name: len(lines) for name, lines in {**systems, **dict(zip(names, references, strict=True))}.items()}
    if not references or 0 in counts.values():
        raise UserError("there is nothing to score: translation and reference must have at least one line")
    if len(set(counts.values())) > 1:
        listed = " and ".join(f"{name} has {count}" for name, count in counts.items())
        raise UserError(f"numbers of lines differ: {listed}; line n of one must belong to line n of the others")
