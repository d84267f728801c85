from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from regard.data.binarise import binarise
from regard.data.dataset import PairDataset
from regard.data.lexicon import Lexicon
from regard.data.shortlist import Shortlist, learn_shortlist, make_shortlist
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings


def lexicon() -> Lexicon:
    """Of two source ids and the empty word (2), and six target ids."""
    entries = {
        (0, 0): 0.1,
        (0, 1): 0.2,
        (0, 3): 0.7,
        (1, 1): 0.5,
        (1, 4): 0.5,
        (1, 5): 0.0,
        (2, 2): 1.0,
    }
    keys = np.array([source * 6 + target for source, target in entries])
    frequencies = np.array([9.0, 1.0, 1.0, 4.0, 1.0, 0.0])
    return Lexicon(2, 6, keys, np.array(list(entries.values())), frequencies)


def test_candidates_are_the_frequent_and_the_likely_ones() -> None:
    found = make_shortlist(lexicon(), first=1, per_token=1)
    assert found.always.tolist() == [0, 2]  # the most frequent one, and what the empty word says
    assert found.candidates([0]).tolist() == [0, 2, 3]
    assert found.candidates([1]).tolist() == [0, 1, 2]  # of two equally likely ones the first
    assert found.candidates([1, 0, 1]).tolist() == [0, 1, 2, 3]
    assert found.candidates([]).tolist() == [0, 2]
    assert found.candidates([1]).dtype == np.int32


def test_a_token_adds_so_many_and_none_that_is_impossible() -> None:
    found = make_shortlist(lexicon(), first=0, per_token=3)
    assert found.candidates([0]).tolist() == [0, 1, 2, 3]
    assert found.candidates([1]).tolist() == [1, 2, 4]
    assert [found.ids[start:stop].tolist() for start, stop in zip(found.offsets, found.offsets[1:], strict=False)] == [
        [3, 1, 0],
        [1, 4],
    ]


def test_control_tokens_and_copies() -> None:
    found = make_shortlist(lexicon(), [5], first=0, per_token=1, copies=True)
    assert found.candidates([0]).tolist() == [0, 2, 3, 5]
    assert found.candidates([1]).tolist() == [1, 2, 5]


def test_what_is_learned_from_pairs(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    said: list[str] = []
    pairs = [("a dog runs", "ein Hund läuft"), ("two cats sleep", "zwei Katzen schlafen"), ("a dog", "ein Hund")] * 3
    binarise(pairs, tokenizers, tmp_path / "pairs.arrow")
    found = learn_shortlist(PairDataset.open(tmp_path / "pairs.arrow", tokenizers), tokenizers, said.append)
    source, target = (tokenizers.source.encode(list(texts)) for texts in zip(*pairs[:3], strict=True))
    for ids, wanted in zip(source, target, strict=True):
        candidates = found.candidates(ids)
        assert set(wanted) | set(ids) | {tokenizers.target_end, *tokenizers.target_begin} <= set(candidates.tolist())
        assert (np.diff(candidates) > 0).all()
    assert "from 9 pairs" in said[0]


def test_written_and_read_back(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    written = _for(tokenizers)
    written.save(tmp_path / "list", tokenizers)
    read = Shortlist.load(tmp_path / "list", tokenizers)
    for ids in ([], [0], [1], [0, 1]):
        assert read.candidates(ids).tolist() == written.candidates(ids).tolist()


def test_another_vocabulary_is_refused(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    other = Tokenizer.learn(["other text"] * 3, TokenizerSettings(size=tokenizers.source.size))
    _for(tokenizers).save(tmp_path / "list", TokenizerPair(other, other))
    with pytest.raises(UserError, match="was made for other tokenizers"):
        Shortlist.load(tmp_path / "list", tokenizers)
    make_shortlist(lexicon()).save(tmp_path / "list", tokenizers)
    with pytest.raises(UserError, match="was made for other tokenizers"):
        Shortlist.load(tmp_path / "list", tokenizers)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids", np.full(8, 99_999, np.int32)),
        ("ids", np.full(8, -1, np.int32)),
        ("ids", np.zeros(9, np.int32)),
        ("ids", np.zeros(8, np.int64)),
        ("offsets", 2),
        ("always", np.zeros((1, 1), np.int32)),
    ],
)
def test_damage_is_refused(tmp_path: Path, tokenizers: TokenizerPair, name: str, value: Any) -> None:
    found = _for(tokenizers)
    assert len(found.ids) == 8
    if name == "offsets":
        value = np.where(np.arange(len(found.offsets)) == value, 9, found.offsets)
    replace(found, **{name: value}).save(tmp_path / "list", tokenizers)
    with pytest.raises(UserError, match="its lists of tokens are damaged"):
        Shortlist.load(tmp_path / "list", tokenizers)


def test_no_such_file(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    (tmp_path / "list").write_bytes(b"{}")
    with pytest.raises(UserError, match="is damaged or no shortlist"):
        Shortlist.load(tmp_path / "list", tokenizers)
    save_file({"ids": np.zeros(1)}, tmp_path / "list")
    with pytest.raises(UserError, match="is damaged or no shortlist"):
        Shortlist.load(tmp_path / "list", tokenizers)
    with pytest.raises(UserError, match="cannot be read"):
        Shortlist.load(tmp_path / "none", tokenizers)


def _for(tokenizers: TokenizerPair) -> Shortlist:
    """Two candidates for each of the first four source ids."""
    offsets = np.minimum(np.arange(tokenizers.source.size + 1) * 2, 8)
    return Shortlist(
        tokenizers.target.size, np.array([2, 7], np.int32), offsets, np.array([3, 9, 5, 6, 8, 9, 4, 4], np.int32)
    )
