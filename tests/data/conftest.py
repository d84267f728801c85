"""A small tokenizer, and data sets of pairs whose lengths a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from regard.data.binarise import binarise
from regard.data.dataset import PairDataset
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SENTENCES = ["a dog runs", "ein Hund läuft", "two cats sleep in the sun", "zwei Katzen schlafen in der Sonne"]


@pytest.fixture(scope="session")
def tokenizers() -> TokenizerPair:
    tokenizer = Tokenizer.learn(SENTENCES * 3, TokenizerSettings(size=290))
    return TokenizerPair(tokenizer, tokenizer)


MakeDataset = Callable[[list[tuple[int, int]]], PairDataset]


@pytest.fixture
def make_dataset(tmp_path: Path, tokenizers: TokenizerPair) -> MakeDataset:
    """From lengths (source, target) in tokens, each at least 1, to a data set."""

    def make(lengths: list[tuple[int, int]]) -> PairDataset:
        pairs = [(_text(i, source), _text(i + 1, target)) for i, (source, target) in enumerate(lengths)]
        path = tmp_path / "pairs.arrow"
        binarise(pairs, tokenizers, path, processes=1)
        dataset = PairDataset.open(path, tokenizers)
        assert list(zip(dataset.source_lengths.tolist(), dataset.target_lengths.tolist(), strict=True)) == lengths
        return dataset

    return make


def _text(start: int, tokens: int) -> str:
    """The space in front of a line is one token, each digit another; "d" with its space is one."""
    return "".join(str((start + k) % 10) for k in range(tokens - 1)) or "d"
