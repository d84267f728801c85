"""How often a classifier is right.

Shapes: N scored labels, L labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.examples import LabelledBatch
from regard.data.labelled import UNSCORED
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


@torch.no_grad()
def predictions(
    model: BidirectionalEncoder, batches: Iterable[LabelledBatch], device: torch.device | str
) -> Predictions:
    """The likeliest labels of all batches, such as those of `in_order()`. The model must be in evaluation mode."""
    predicted, expected = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for batch in batches:
        moved = batch.to(device)
        answers = model.logits(model.encode(moved.inputs, moved.real_BS)).argmax(dim=-1).cpu()
        scored = batch.labels != UNSCORED
        predicted.append(answers[scored].numpy())
        expected.append(batch.labels[scored].numpy())
    return Predictions(np.concatenate(predicted), np.concatenate(expected))


def classification_scores(model: Any, batches: Iterable[LabelledBatch], device: torch.device | str) -> dict[str, float]:
    """Accuracy and macro F1, per cent, by the names that validation knows them by."""
    found = predictions(model, batches, device)
    return {"accuracy": found.accuracy(), "macro_f1": found.macro_f1()}
