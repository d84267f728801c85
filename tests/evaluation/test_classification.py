"""Accuracy and macro F1: by hand, and against scikit-learn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.budget import BatchSettings
from regard.data.examples import LabelledBatches
from regard.data.labelled import LabelledDataset, Tagged, binarise_tagged
from regard.evaluation.classification import Predictions, predictions
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder
from regard.text.tokenizer import Tokenizer, TokenizerSettings


def scores(predicted: list[int], expected: list[int]) -> tuple[float, float]:
    found = Predictions(np.array(predicted, np.int64), np.array(expected, np.int64))
    return found.accuracy(), found.macro_f1()


def test_by_hand() -> None:
    """Label 0: 1 right of 2 said and 3 expected, F1 0.4; label 1: 2 of 3 and 2, 0.8; label 5: of 1 and 1 none, 0."""
    accuracy, macro_f1 = scores([0, 1, 5, 1, 1, 0], [0, 0, 0, 1, 1, 5])
    assert accuracy == 50
    assert macro_f1 == pytest.approx(100 * (0.4 + 0.8 + 0) / 3)
    assert scores([3, 4], [3, 4]) == (100, 100)
    assert scores([3, 4], [4, 3]) == (0, 0)


def test_of_nothing_nothing_is_said() -> None:
    assert all(map(math.isnan, scores([], [])))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_they_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    predicted, expected = map(list, zip(*pairs, strict=True))
    accuracy, macro_f1 = scores(predicted, expected)
    assert accuracy == pytest.approx(100 * metrics.accuracy_score(expected, predicted))
    assert macro_f1 == pytest.approx(100 * metrics.f1_score(expected, predicted, average="macro", zero_division=0))


def test_only_the_first_token_of_each_word_is_scored(tmp_path: Path) -> None:
    labels = ("a", "b")
    sentences = [Tagged(["one", "two"], ["a", "b"], ["", ""]), Tagged(["three"], ["b"], [""])]
    tokenizer = Tokenizer.learn(["one two three"], TokenizerSettings(size=262))
    binarise_tagged(sentences, tokenizer, tmp_path / "a.arrow", labels)
    dataset = LabelledDataset.open(tmp_path / "a.arrow", tokenizer)
    torch.manual_seed(0)
    small = ModelSettings(d_model=8, d_ff=8, heads=1, encoder_layers=1)
    model = BidirectionalEncoder(small, tokenizer.size, HeadSettings(kind="tokens", labels=labels)).eval()
    feed = LabelledBatches(dataset, BatchSettings(tokens=12))
    found = predictions(model, feed.in_order())
    assert sorted(found.expected_N.tolist()) == [0, 1, 1]
    said = []
    for batch in feed.in_order():
        answers = model.logits(model.encode(batch.inputs, batch.real_BS)).argmax(dim=-1)
        said += [int(a) for a, label in zip(answers.flatten(), batch.labels.flatten(), strict=True) if label >= 0]
    assert found.predicted_N.tolist() == said
    assert found.by_name() == {"accuracy": found.accuracy(), "macro_f1": found.macro_f1()}
    assert [(each.name, each.value, each.signature) for each in found.scores("word")] == [
        ("accuracy", found.accuracy(), "words:3"),
        ("macro F1", found.macro_f1(), "words:3"),
    ]
