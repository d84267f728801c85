from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from regard.data.lexicon import Lexicon
from regard.data.shortlist import Shortlist, make_shortlist
from regard.errors import UserError


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


def test_written_and_read_back(tmp_path: Path) -> None:
    found = make_shortlist(lexicon(), first=1, per_token=2)
    found.save(tmp_path / "list")
    read = Shortlist.load(tmp_path / "list", 2, 6)
    for ids in ([], [0], [1], [0, 1]):
        assert read.candidates(ids).tolist() == found.candidates(ids).tolist()


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    make_shortlist(lexicon()).save(tmp_path / "list")
    with pytest.raises(UserError, match="of 2 and 6 pieces, not for the model's of 2 and 7"):
        Shortlist.load(tmp_path / "list", 2, 7)
    with pytest.raises(UserError, match="not for the model's of 3 and 6"):
        Shortlist.load(tmp_path / "list", 3, 6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids", np.array([7, 7, 7, 7], np.int32)),
        ("ids", np.array([-1, 0, 0, 0], np.int32)),
        ("ids", np.zeros(9, np.int32)),
        ("offsets", np.array([0, 4, 2])),
        ("offsets", np.array([0, 2, 4], np.int32)),
        ("always", np.zeros((1, 1), np.int32)),
        ("target_size", np.array([1, 2])),
    ],
)
def test_damage_is_refused(tmp_path: Path, name: str, value: np.ndarray) -> None:
    path = tmp_path / "list"
    make_shortlist(lexicon(), first=0, per_token=2).save(path)
    tensors = load_file(path)
    assert len(tensors["ids"]) == 4
    save_file({**tensors, name: value}, path)
    with pytest.raises(UserError, match="is damaged or no shortlist"):
        Shortlist.load(path, 2, 6)


def test_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"{}")
    with pytest.raises(UserError, match="is damaged or no shortlist"):
        Shortlist.load(tmp_path / "list", 2, 6)
    with pytest.raises(UserError, match="cannot be read"):
        Shortlist.load(tmp_path / "none", 2, 6)
