"""Our own vocabularies with a mask, which old ones are without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, TokenizerSettings
from regard.text.vocabulary import SMALLEST

KINDS = ("bpe", "wordpiece", "unigram")
LINES = ["the dog sleeps in the house", "a <mask> b<mask>", "don't <s> café 你好"] * 5
each_kind = pytest.mark.parametrize("kind", KINDS)


def learned(kind: str, mask: bool, size: int = 300) -> Tokenizer:
    return Tokenizer.learn(LINES, TokenizerSettings.model_validate({"kind": kind, "mask": mask, "size": size}))


@each_kind
def test_the_mask_is_a_control_id_after_the_others(kind: str) -> None:
    tokenizer = learned(kind, mask=True)
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.mask) == (0, 1, 2, 3, 4)
    assert set(tokenizer.forbidden) == {0, 1, 3, 4}
    assert tokenizer.pieces([4]) == ["<mask>"]
    assert tokenizer.decode([[4, *tokenizer.encode(["the dog"])[0], 4]]) == ["the dog"]


@each_kind
@given(parts=st.lists(st.sampled_from(["<mask>", "<s>", " ", "the", "<", "mask", ">"]), max_size=6))
def test_no_text_gives_it(kind: str, parts: list[str]) -> None:
    text = "".join(parts)
    tokenizer = learned(kind, mask=True)
    [ids] = tokenizer.encode([text])
    assert all(number > 4 for number in ids)
    assert tokenizer.decode([ids]) == [text]


@each_kind
def test_files_are_told_apart_by_what_is_in_them(kind: str, tmp_path: Path) -> None:
    found = {}
    for mask in (True, False):
        tokenizer, path = learned(kind, mask), tmp_path / f"{mask}.json"
        tokenizer.save(path)
        found[mask] = Tokenizer.load(path)
        assert found[mask].fingerprint == tokenizer.fingerprint
        assert found[mask].encode(LINES) == tokenizer.encode(LINES)
    assert (found[True].mask, found[False].mask) == (4, None)
    assert set(found[False].forbidden) == {0, 1, 3}
    assert found[True].fingerprint != found[False].fingerprint


@each_kind
def test_the_smallest_vocabulary_has_one_more(kind: str) -> None:
    assert learned(kind, mask=True, size=SMALLEST + 1).size == SMALLEST + 1
    with pytest.raises(UserError, match=f"5 control tokens .* smallest size is {SMALLEST + 1}"):
        learned(kind, mask=True, size=SMALLEST)


@each_kind
def test_a_mask_elsewhere_is_no_mask(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    learned(kind, mask=True).save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary[4], vocabulary[5] = vocabulary[5], vocabulary[4]
    else:
        other = next(piece for piece, number in vocabulary.items() if number == 5)
        vocabulary |= {"<mask>": 5, other: 4}
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UserError, match="damaged"):
        Tokenizer.load(path)
