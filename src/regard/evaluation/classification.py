"""How often a classifier is right.

Shapes: N scored labels, L labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.examples import LabelledBatch
from regard.data.labelled import UNSCORED
from regard.evaluation.metrics import Score
from regard.model.transformer import BidirectionalEncoder


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a classifier says of labelled data, and what is right."""

    predicted_N: NDArray[np.int64]
    expected_N: NDArray[np.int64]

    def accuracy(self) -> float:
        """Per cent that are right; NaN where there is nothing."""
        return float(np.mean(self.predicted_N == self.expected_N)) * 100 if len(self.expected_N) else np.nan

    def macro_f1(self) -> float:
        """Per cent: the mean over the labels of F1, the harmonic mean of precision and recall.

        The labels are those that were expected or predicted at all, each counts the same; NaN where there is none.
        """
        labels, numbers = np.unique(np.concatenate((self.predicted_N, self.expected_N)), return_inverse=True)
        predicted, expected = np.split(numbers, 2)
        # F1 = 2 right / (predicted + expected), label by label
        right = np.bincount(expected[predicted == expected], minlength=len(labels))
        return float(np.mean(2 * right / np.bincount(numbers))) * 100 if len(labels) else np.nan

    def by_name(self) -> dict[str, float]:
        """Both, by the names that validation knows them by."""
        return {"accuracy": self.accuracy(), "macro_f1": self.macro_f1()}

    def scores(self, unit: str) -> list[Score]:
        """Both, with how many were scored; `unit` is what has a label."""
        signature = f"{unit}s:{len(self.expected_N)}"
        return [Score("accuracy", self.accuracy(), signature), Score("macro F1", self.macro_f1(), signature)]


@torch.no_grad()
def predictions(model: BidirectionalEncoder, batches: Iterable[LabelledBatch]) -> Predictions:
    """The likeliest labels of all batches, such as those of `in_order()`. The model must be in evaluation mode."""
    device = next(model.parameters()).device
    predicted, expected = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for batch in batches:
        moved = batch.to(device)
        answers = model.logits(model.encode(moved.inputs, moved.real_BS)).argmax(dim=-1).cpu()
        scored = batch.labels != UNSCORED
        predicted.append(answers[scored].numpy())
        expected.append(batch.labels[scored].numpy())
    return Predictions(np.concatenate(predicted), np.concatenate(expected))
