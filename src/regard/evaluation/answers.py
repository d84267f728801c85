"""Scores for answers that are right or wrong, such as pronunciations, spellings or inflected words.

`exact` is the share of lines that equal one of their references; of pronunciations, 100 - exact is the word error rate.
`edit` is the least number of tokens (what white space divides) to insert, delete or replace on the way to the nearest
reference, over the tokens of that reference; of pronunciations it is the phoneme error rate.

They are metrics of sacreBLEU's kind, so that significance is tested in the same way. Where several files of references
have fewer for some line, it is empty there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.base import Metric, Score, Signature


class _AnswerSignature(Signature):
    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.info["case"] = "lc" if args["lowercase"] else "mixed"
        self._abbr["case"] = "c"


class _Answers(Metric):
    """A metric of lines and of the tokens in them."""

    _SIGNATURE_TYPE = _AnswerSignature
    name: str

    def __init__(self, lowercase: bool = False) -> None:
        Metric.__init__(self)
        self.lowercase = lowercase

    def _preprocess_segment(self, sent: str) -> str:
        return " ".join((sent.lower() if self.lowercase else sent).split())

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": [each for each in refs if each] or [""]}

    def _aggregate_and_compute(self, stats: list[list[Any]]) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: list[Any]) -> Score:
        counted, of = stats
        return Score(self.name, 100.0 * counted / of if of else 0.0)


class ExactMatch(_Answers):
    """The share of lines that equal one of their references, in percent."""

    name = "exact"

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        return [int(hypothesis in ref_kwargs["references"]), 1]


class EditRate(_Answers):
    """Tokens to change over tokens of the nearest reference, in percent: the lower the better, perhaps above 100."""

    name = "edit"

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        tokens = hypothesis.split()
        references = [reference.split() for reference in ref_kwargs["references"]]
        distances = [(edits(tokens, reference), len(reference)) for reference in references]
        count, of = min(distances, key=lambda each: (each[0] / max(each[1], 1), each[0]))
        return [count, of]


def edits(tokens: Sequence[str], reference: Sequence[str]) -> int:
    """The least number of insertions, deletions and replacements (Levenshtein 1966), row by row."""
    row = list(range(len(reference) + 1))
    for number, token in enumerate(tokens, 1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(reference, 1):
            changed = min(row[place] + 1, row[place - 1] + 1, diagonal + (token != other))
            diagonal, row[place] = row[place], changed
    return row[-1]
