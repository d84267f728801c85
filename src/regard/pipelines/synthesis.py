"""Pairs to train on, one side of which a model wrote: back-translation and sequence-level distillation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import tee
from typing import Any

from regard.data.corpus import Pair
from regard.evaluation.metrics import SentenceScore
from regard.pipelines.translator import Translator
from regard.search.engine import Candidate, Translation
from regard.search.settings import SamplingSettings
from regard.text.lines import one_line

Outcome = Pair | str
"""The pair that a line gave, or why it gave none."""


def back_translate(
    translator: Translator, targets: Iterable[str], sampling: SamplingSettings | None, **options: Any
) -> Iterator[Outcome]:
    """Sources for text in the target language, by a model of the other direction (Sennrich et al. 2016, 1511.06709).

    Drawn ones teach more than the most probable ones, which are too regular (Edunov et al. 2018, arXiv 1808.09381).

    Args:
        sampling: how they are drawn; None searches for the best instead.
        options: fields of `SearchSettings`.
    """
    asked, kept = tee(targets)
    translations = translator.stream(asked, sampling=sampling, patience=None, **options)
    for target, translation in zip(kept, translations, strict=True):
        reason = _unfit(target, translation)
        yield reason or (one_line(translation.best.text), target)


def distill(
    translator: Translator,
    pairs: Iterable[tuple[str, str | None]],
    likeness: SentenceScore | None = None,
    **options: Any,
) -> Iterator[Outcome]:
    """Targets for sources, as a model translates them (Kim and Rush 2016, arXiv 1606.07947, section 3.2).

    Where a source has a target already, of the `nbest` translations the one that is most like it is taken (section 3.3,
    sequence-level interpolation).

    Args:
        pairs: sources, each with its target or None.
        likeness: says how like a translation is to the target; BLEU unless told otherwise.
        options: fields of `SearchSettings`.
    """
    asked, kept = tee(pairs)
    likeness = likeness or SentenceScore()
    translations = translator.stream((source for source, _ in asked), patience=None, **options)
    for (source, target), translation in zip(kept, translations, strict=True):
        reason = _unfit(source, translation)
        yield reason or (source, one_line(_chosen(translation, target, likeness).text))


def _chosen(translation: Translation, target: str | None, likeness: SentenceScore) -> Candidate:
    if target is None:
        return translation.best
    usable = [each for each in translation.candidates if each.finished and each.text.strip()]
    return max(usable, key=lambda each: likeness(each.text, target))  # of equal ones the first, which is more probable


def _unfit(text: str, translation: Translation) -> str | None:
    """Why no pair can be made of a text and its translation."""
    if not text.strip():
        return "empty line"
    if translation.shortened:
        return "longer than the model can read"
    if not translation.best.text.strip():
        return "empty translation"
    if not translation.best.finished:
        return "translation without an end"
    return None
