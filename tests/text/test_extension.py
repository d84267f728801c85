"""Vocabularies that grow: ids keep their meaning, text stays text, and new pieces are joined from old ones."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.text.extension import extended, made_of, with_tags
from regard.text.tokenizer import Tokenizer, TokenizerSettings

KINDS = ("bpe", "wordpiece", "unigram")
LINES = ["the dog sleeps in the house", "der Hund schläft im Haus", "a <bt> b<bt>"] * 5
NEW = ["hypertension and hypotension", "hypertensive patients", "der hypertensive Hund"] * 4
each_kind = pytest.mark.parametrize("kind", KINDS)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def learned(kind: str = "bpe", size: int = 300, mask: bool = False) -> Tokenizer:
    return Tokenizer.learn(LINES, TokenizerSettings.model_validate({"kind": kind, "size": size, "mask": mask}))


@each_kind
@pytest.mark.parametrize("mask", [False, True])
def test_a_tag_is_a_new_id_without_text(kind: str, mask: bool, tmp_path: Path) -> None:
    before = learned(kind, mask=mask)
    after = with_tags(before, ["bt", "distilled", "bt"])
    after.save(tmp_path / "tokenizer.json")
    for tokenizer in (after, Tokenizer.load(tmp_path / "tokenizer.json")):
        assert tokenizer.tags == {"bt": before.size, "distilled": before.size + 1}
        assert tokenizer.size == before.size + 2
        assert tokenizer.mask == before.mask
        assert set(tokenizer.forbidden) == {*before.forbidden, *tokenizer.tags.values()}
        assert tokenizer.encode(LINES) == before.encode(LINES)
        assert tokenizer.pieces([before.size]) == ["<bt>"]
        assert tokenizer.decode([[before.size, *before.encode(["the dog"])[0]]]) == ["the dog"]
        assert tokenizer.fingerprint == after.fingerprint != before.fingerprint
    assert made_of(before, after) == [(), ()]
    assert with_tags(after, ["distilled"]) is after


@each_kind
@given(parts=st.lists(st.sampled_from(["<bt>", "<s>", " ", "the", "<", "bt", ">"]), max_size=6))
def test_no_text_gives_a_tag(kind: str, parts: list[str]) -> None:
    text = "".join(parts)
    tokenizer = with_tags(learned(kind), ["bt"])
    [ids] = tokenizer.encode([text])
    assert tokenizer.tags["bt"] not in ids
    assert tokenizer.decode([ids]) == [text]


def test_a_longer_vocabulary_knows_the_new_words(tmp_path: Path) -> None:
    before = with_tags(learned(), ["bt"])
    after = extended(before, NEW, 20)
    after.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.fingerprint == after.fingerprint
    assert after.size == before.size + 20
    assert after.tags == before.tags
    assert before.pieces(list(range(before.size))) == after.pieces(list(range(before.size)))
    [old], [new] = before.encode(["hypertensive"]), again.encode(["hypertensive"])
    assert len(new) < len(old)
    assert max(new) >= before.size
    assert after.decode([new]) == ["hypertensive"]


def test_new_pieces_are_made_of_old_ones_that_a_text_is_cut_into() -> None:
    before = learned()
    after = extended(before, NEW, 20)
    parts = made_of(before, after)
    assert len(parts) == 20
    assert all(len(each) >= 2 and max(each) < before.size for each in parts)

    def in_old_ids(ids: list[int]) -> list[int]:
        return [old for number in ids for old in (parts[number - before.size] if number >= before.size else (number,))]

    texts = [*NEW, *LINES, "hyper hypertension's"]
    assert [in_old_ids(ids) for ids in after.encode(texts)] == before.encode(texts)


@given(text=any_text | st.lists(st.sampled_from(["hyper", "tension", " ", "the", "Hund", "tens"])).map("".join))
def test_text_is_whole_and_without_new_pieces_has_the_old_ids(text: str) -> None:
    before = learned()
    after = extended(before, NEW, 20)
    [ids] = after.encode([text])
    assert after.decode([ids]) == [text]
    if all(number < before.size for number in ids):
        assert [ids] == before.encode([text])


@given(words=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=9), old=st.integers(260, 275))
def test_nothing_is_learned_twice(words: list[str], old: int) -> None:
    before = Tokenizer.learn([" ".join(words)] * 2, TokenizerSettings(size=old))
    after = extended(before, [" ".join(word[::-1] + word for word in words)] * 2, 30)
    assert len(after.document["model"]["vocab"]) == after.size
    assert after.size == before.size + len(made_of(before, after))
    assert len(after.document["model"]["merges"]) == after.size - 260


def test_extending_again_goes_on() -> None:
    first = extended(learned(), NEW, 5)
    second = extended(first, ["pulmonary pulmonary embolism embolism"] * 3, 5)
    assert second.size == first.size + 5
    assert len(made_of(learned(), second)) == 10
    assert second.decode(second.encode([*NEW, "pulmonary"])) == [*NEW, "pulmonary"]


def test_the_same_text_gives_the_same_pieces_whatever_its_order() -> None:
    assert extended(learned(), NEW, 9).fingerprint == extended(learned(), NEW[::-1], 9).fingerprint


def test_too_little_text_gives_fewer_pieces_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    before = learned()
    after = extended(before, ["zebra zebra"], 100)
    assert before.size < after.size < before.size + 100
    assert f"no more than {after.size - before.size}" in caplog.text


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_other_kinds_cannot_be_extended(kind: str) -> None:
    with pytest.raises(UserError, match=r"only a vocabulary of byte pair encoding .* can be extended"):
        extended(learned(kind), NEW, 5)


def test_a_converted_vocabulary_stays_as_it_is() -> None:
    foreign = Mock(spec=Tokenizer, tags={})
    assert with_tags(foreign, []) is foreign
    with pytest.raises(UserError, match="converted gets no tags"):
        with_tags(foreign, ["bt"])
    with pytest.raises(UserError, match="converted cannot be extended"):
        extended(foreign, NEW, 5)


def test_what_did_not_grow_out_of_another_is_not_compared() -> None:
    other = Tokenizer.learn(NEW, TokenizerSettings(size=300))
    with pytest.raises(ValueError, match="did not grow out of"):
        made_of(learned(), other)


@pytest.mark.parametrize("name", ["<mask>", "<s>"])
def test_a_file_with_a_control_token_out_of_place_is_refused(tmp_path: Path, name: str) -> None:
    document = json.loads(json.dumps(with_tags(learned(), ["bt"]).document))
    vocab = document["model"]["vocab"]
    vocab[name] = vocab.pop("<bt>")  # a name that is taken, or out of place
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UserError, match="is damaged"):
        Tokenizer.load(tmp_path / "tokenizer.json")
