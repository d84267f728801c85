"""Marian and M2M100, whose directories hold SentencePiece models: the ids that `transformers` gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.text.foreign import read_hub_tokenizer
from regard.text.tokenizer import TokenizerPair

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")

SIDES = {
    "source": [
        "the dog and the fox sleep in the house",
        "the dogs of the house and the foxes",
        "The quick brown fox jumps over the lazy dog, 1,234.50 times.",
        "it isn't a test: a . b , c ' d",
    ],
    "target": [
        "der Hund und der Fuchs schlafen im Haus",
        "die Hunde des Hauses und die Füchse",
        "Victor jagt zwölf Boxkämpfer quer über den großen Deich.",
        "der Hund schläft: a . b , c ' d",
    ],
}
TEXTS = [
    "the fox isn't lazy",
    "  two  inner, leading and trailing  ",
    "",
    " ",
    "a\ttab, nbsp\u00a0and wide\u3000space",
    "\u2581under \u2581\u2581x",
    "ﬁ e\u0301",
    "über den schönen Hund",
    "ü, ß: characters that only the vocabulary has",
    "unseen 龘 and 𠮷",
    "👨‍👩‍👧 family",
    "a , b . ': 'search'",
]


def learn(path: Path, lines: list[str], kind: str) -> list[str]:
    """A SentencePiece model at `path`; its pieces."""
    corpus = path.with_suffix(".txt")
    corpus.write_text("\n".join(lines * 20) + "\n", encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(path), vocab_size=90, model_type=kind, hard_vocab_limit=False, minloglevel=2
    )
    Path(f"{path}.model").rename(path)
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(number) for number in range(3, model.get_piece_size())]


def missing(pieces: list[str]) -> str:
    """The first whole word, which the vocabularies here lack."""
    return next(piece for piece in pieces if len(piece) > 2 and piece.startswith("▁"))


def number(pieces: list[str], first: list[str], last: tuple[str, ...] = ()) -> dict[str, int]:
    names = dict.fromkeys([*first, *(piece for piece in pieces if piece != missing(pieces)), *last])
    return {name: place for place, name in enumerate(names)}


def store(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("marian")
    pieces = [
        piece for side, lines in SIDES.items() for piece in learn(directory / f"{side}.spm", lines * 3, "unigram")
    ]
    vocabulary = number(pieces, ["</s>", "<unk>"], (">>deu<<", ">>fra<<", "<pad>"))
    size = len(vocabulary)
    store(directory / "vocab.json", vocabulary)
    store(directory / "tokenizer_config.json", {"source_lang": "en", "target_lang": "de"})
    config = {"model_type": "marian", "vocab_size": size, "pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    store(directory / "config.json", config | {"eos_token_id": 0, "bad_words_ids": [[size - 1]]})
    return directory


@pytest.mark.parametrize("side", ["source", "target"])
def test_marian_gives_their_ids(marian: Path, side: str) -> None:
    theirs, pair = transformers.MarianTokenizer.from_pretrained(marian), read_hub_tokenizer(marian)
    ours = getattr(pair, side)
    key = {"source": "text", "target": "text_target"}[side]
    for text in TEXTS:
        [ids] = ours.encode([text])
        assert ids == theirs(**{key: text}, add_special_tokens=False)["input_ids"], text
        assert ours.decode([ids])[0].strip() == theirs.decode(ids, skip_special_tokens=True)


def test_a_piece_that_the_vocabulary_lacks_is_unknown(marian: Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_file=str(marian / "source.spm"))
    piece = missing([model.id_to_piece(number) for number in range(3, model.get_piece_size())])
    pair = read_hub_tokenizer(marian)
    [ids] = pair.source.encode([piece.replace("▁", "")])
    assert model.encode(piece.replace("▁", ""), out_type=str) == [piece]
    assert ids == [pair.source.unk]


def test_characters_that_only_the_vocabulary_has_are_kept_in_a_row_too(marian: Path) -> None:
    """SentencePiece makes one piece of them, which their vocabulary lacks: all would be lost."""
    source = read_hub_tokenizer(marian).source
    [ids] = source.encode(["öß"])
    assert source.decode([ids]) == ["öß"]


def test_marian_stands_between_its_control_ids(marian: Path) -> None:
    pair, size = read_hub_tokenizer(marian), json.loads((marian / "config.json").read_text())["vocab_size"]
    assert (pair.source.size, pair.target.size) == (size, size)
    assert (pair.source_begin, pair.source_end) == ((), (0,))
    assert (pair.target_begin, pair.target_end) == ((size - 1,), 0)
    assert pair.target.forbidden == (size - 1,)


def test_marian_is_told_one_of_several_languages(marian: Path) -> None:
    vocabulary = json.loads((marian / "vocab.json").read_text())
    for name in ("fra", ">>fra<<"):
        assert read_hub_tokenizer(marian, None, name).source_begin == (vocabulary[">>fra<<"],)
    with pytest.raises(UserError, match="does not know the target language ita; give one such as >>deu<<, >>fra<<"):
        read_hub_tokenizer(marian, None, "ita")


def test_text_never_gives_a_control_id_of_marian(marian: Path) -> None:
    pair = read_hub_tokenizer(marian)
    control = {pair.source.eos, pair.source.pad}
    languages = {json.loads((marian / "vocab.json").read_text())[name] for name in (">>deu<<", ">>fra<<")}
    for ids in pair.source.encode(["</s> <pad>", ">>fra<< the dog", "a</s>b"]):
        assert not (control | languages) & set(ids)


def test_both_sides_are_saved(marian: Path, tmp_path: Path) -> None:
    pair = read_hub_tokenizer(marian, None, "fra")
    pair.save(tmp_path)
    again = TokenizerPair.load(tmp_path)
    assert again.fingerprint == pair.fingerprint
    assert again.source_begin == pair.source_begin
    for side in ("source", "target"):
        assert getattr(again, side).encode(TEXTS) == getattr(pair, side).encode(TEXTS)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_m2m100_gives_their_ids(tmp_path: Path, kind: str) -> None:
    pieces = learn(tmp_path / "sentencepiece.bpe.model", [line for lines in SIDES.values() for line in lines] * 3, kind)
    vocabulary = number(pieces, ["<s>", "<pad>", "</s>", "<unk>"])
    store(tmp_path / "vocab.json", vocabulary)
    config = {"model_type": "m2m_100", "decoder_start_token_id": 2, "vocab_size": len(vocabulary) + 108}
    store(tmp_path / "config.json", config)
    files = [str(tmp_path / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
    theirs = transformers.M2M100Tokenizer(*files, src_lang="de", tgt_lang="fr")
    pair = read_hub_tokenizer(tmp_path, "de", "fr")
    for text, ids in zip(TEXTS, pair.source.encode(TEXTS), strict=True):
        assert [*pair.source_begin, *ids, *pair.source_end] == theirs(text)["input_ids"], text
    assert pair.target_begin == (2, theirs.get_lang_id("fr"))
    assert pair.source.size == len(vocabulary) + 108
    assert pair.source.decode([[theirs.get_lang_id("fr")]]) == [""]


def test_what_is_missing_or_damaged_is_a_sentence(marian: Path, tmp_path: Path) -> None:
    for path in marian.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for content in (b"\xff\xff\xff", b""):
        (tmp_path / "source.spm").write_bytes(content)
        with pytest.raises(UserError, match=r"source\.spm: .*fetch it again"):
            read_hub_tokenizer(tmp_path)
    (tmp_path / "source.spm").unlink()
    with pytest.raises(UserError, match=r"source\.spm: cannot be read"):
        read_hub_tokenizer(tmp_path)
