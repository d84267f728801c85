from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.data.aligned import learned_links, links_of_tokens, open_links, write_links
from regard.data.batches import Batches, BatchSettings
from regard.data.binarise import binarise
from regard.data.dataset import PairDataset
from regard.errors import UserError
from regard.text.tokenizer import TokenizerPair

PAIRS = [("a dog runs", "ein Hund läuft"), ("two cats", "zwei Katzen"), ("a cat sleeps", "ein Hund schläft")]
LINKS = [[(0, 0), (1, 2), (0, 2)], [], [(2, 1)]]


@pytest.fixture
def dataset(tmp_path: Path, tokenizers: TokenizerPair) -> PairDataset:
    binarise(PAIRS, tokenizers, tmp_path / "pairs.arrow")
    return PairDataset.open(tmp_path / "pairs.arrow", tokenizers)


def test_batches_know_what_is_aligned(tmp_path: Path, dataset: PairDataset) -> None:
    assert write_links(tmp_path / "links", LINKS) == 4
    batches = Batches(dataset, BatchSettings(tokens=500), links=open_links(tmp_path / "links", dataset))
    (batch,) = batches.epoch(0)
    assert batch.aligned_BTS is not None
    assert batch.aligned_BTS.shape == (3, batch.target_out_BT.shape[1], batch.source_BS.shape[1])
    for row, index in enumerate(batch.indices):
        expected = torch.zeros(batch.aligned_BTS.shape[1:])
        for source, target in LINKS[index]:
            expected[target, source] = 1 / sum(target == other for _, other in LINKS[index])
        assert torch.equal(batch.aligned_BTS[row], expected)


def test_batches_without_links_know_nothing(dataset: PairDataset) -> None:
    assert all(batch.aligned_BTS is None for batch in Batches(dataset, BatchSettings(tokens=500)).epoch(0))


def test_links_go_with_their_rows_through_parts(tmp_path: Path, dataset: PairDataset) -> None:
    write_links(tmp_path / "links", LINKS)
    (batch,) = Batches(dataset, BatchSettings(tokens=500), links=open_links(tmp_path / "links", dataset)).epoch(0)
    parts = batch.parts(3)
    assert torch.equal(torch.cat([part.aligned_BTS for part in parts]), batch.aligned_BTS)


def test_links_of_other_pairs_are_refused(tmp_path: Path, dataset: PairDataset) -> None:
    write_links(tmp_path / "links", LINKS[:2])
    with pytest.raises(UserError, match=r"links.*\(it is not of these pairs\)"):
        open_links(tmp_path / "links", dataset)


def test_learned_links_are_of_each_pair(dataset: PairDataset, tokenizers: TokenizerPair) -> None:
    found = list(learned_links(dataset, tokenizers))
    assert len(found) == 3
    for links, sources, targets in zip(found, dataset.source_lengths, dataset.target_lengths, strict=True):
        assert links
        assert all(0 <= source < sources and 0 <= target < targets for source, target in links)


def test_links_of_words_are_links_of_all_their_tokens(tokenizers: TokenizerPair) -> None:
    pair = "dogs  42", "the Xy"
    source, target = (tokenizers.source.pieces(tokenizers.source.encode([text])[0]) for text in pair)
    assert source == ["▁d", "o", "g", "s", "▁", "▁", "4", "2"] or "".join(source) == "▁dogs▁▁42"
    found = links_of_tokens(tokenizers, pair, [(1, 1)], "file, line 1")
    digits, letters = {len(source) - 2, len(source) - 1}, {len(target) - 2, len(target) - 1}
    assert {(left, right) for left, right in found if left in digits and right in letters} == {
        (left, right) for left in digits for right in letters
    }
    assert all("".join(source[left:]).strip("▁").startswith(("4", "2")) for left, _ in found)
    with pytest.raises(UserError, match=r"file, line 7: 1-2 links words that are not there: the texts have 2 and 2"):
        links_of_tokens(tokenizers, pair, [(0, 0), (1, 2)], "file, line 7")
