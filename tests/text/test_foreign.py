"""Tokenizers of Hugging Face directories: the ids and texts that `transformers` gives, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.errors import UserError
from regard.text.foreign import read_hub_tokenizer, write_hub_tokenizer
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

transformers = pytest.importorskip("transformers")

CORPUS = [
    "The quick brown fox jumps over the lazy dog, 1,234.50 times.",
    "Größe und Straße: café, naïve; 你好，世界！",
    "https://a.b/c?d=1&e=%20 isn't   three  spaces",
] * 3
TEXTS = [
    "The fox isn't lazy.",
    "  two  inner and leading spaces ",
    "café 你好 \U0001f468\u200d\U0001f469\u200d\U0001f467 emoji",
    "a\ttab and 1,234.50",
    "",
    "unseen: Ωμέγα",
]


def bert() -> tuple[Backend, dict[str, Any], dict[str, Any]]:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    names = dict(zip(["pad", "unk", "cls", "sep", "mask"], special, strict=True))
    return backend, {f"{role}_token": name for role, name in names.items()}, {"model_type": "bert", "pad_token_id": 0}


def byte_level(kind: str) -> tuple[Backend, dict[str, Any], dict[str, Any]]:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind in ("roberta", "bart") else ["<|endoftext|>"]
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(CORPUS, trainer)
    backend.decoder = decoders.ByteLevel()
    if kind == "gpt2":
        names = {"bos_token": special[0], "eos_token": special[0]}
        return backend, names, {"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": 0}
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
    roles = ("bos", "pad", "eos", "unk", "mask")
    names = {f"{role}_token": name for role, name in zip(roles, special, strict=True)}
    config = {"model_type": kind, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    return backend, names, config | ({"decoder_start_token_id": 2, "forced_bos_token_id": 0} if kind == "bart" else {})


def unigram() -> tuple[Backend, dict[str, Any], dict[str, Any]]:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>")
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing("$A </s>", None, [("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return backend, names, {"model_type": "t5", "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def llama() -> tuple[Backend, dict[str, Any], dict[str, Any]]:
    special = ["<unk>", "<s>", "</s>"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyzT.,'"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)} | {"▁t": 320, "he": 321, "▁the": 322}
    vocabulary = {piece: number for number, piece in enumerate(vocabulary)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he")]
    backend = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(special)
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return backend, names, {"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}


KINDS: dict[str, Callable[[], tuple[Backend, dict[str, Any], dict[str, Any]]]] = {
    "bert": bert,
    "gpt2": lambda: byte_level("gpt2"),
    "roberta": lambda: byte_level("roberta"),
    "bart": lambda: byte_level("bart"),
    "t5": unigram,
    "llama": llama,
}
every = pytest.mark.parametrize("kind", sorted(KINDS))


def write(directory: Path, kind: str) -> Any:
    """A directory as transformers writes it; the tokenizer of transformers that it holds."""
    backend, names, config = KINDS[kind]()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    theirs.save_pretrained(directory)
    config = config | {"vocab_size": backend.get_vocab_size()}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return theirs


@every
def test_ids_and_texts_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    theirs = write(tmp_path, kind)
    ours = read_hub_tokenizer(tmp_path).source
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert ours.encode(TEXTS) == expected
    decode = [theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) for ids in expected]
    assert ours.decode(expected) == decode
    assert ours.size == len(theirs)
    end = theirs.sep_token_id if theirs.eos_token_id is None else theirs.eos_token_id
    assert (ours.eos, ours.mask) == (end, theirs.mask_token_id)


@every
def test_what_stands_around_a_text_is_what_transformers_puts_there(tmp_path: Path, kind: str) -> None:
    theirs = write(tmp_path, kind)
    frames, (ids,) = read_hub_tokenizer(tmp_path).source.frames, theirs(["The fox"])["input_ids"]
    (plain,) = read_hub_tokenizer(tmp_path).source.encode(["The fox"])
    source = [*frames.source_begin, *plain, *frames.source_end]
    alone = [*frames.begin, *plain, *frames.end]
    assert ids == (source if kind in ("bart", "t5") else alone)
    assert {"bart": (2, 0), "t5": (0,)}.get(kind, frames.target_begin) == frames.target_begin


@every
def test_it_is_written_read_again_and_streams(tmp_path: Path, kind: str) -> None:
    write(tmp_path, kind)
    pair = read_hub_tokenizer(tmp_path)
    (tmp_path / "ours").mkdir()
    pair.save(tmp_path / "ours")
    again = TokenizerPair.load(tmp_path / "ours").source
    assert again.fingerprint == pair.fingerprint
    assert again.frames == pair.source.frames
    rows = again.encode(TEXTS)
    assert rows == pair.source.encode(TEXTS)
    for row, text in zip(rows, again.decode(rows), strict=True):
        stream = again.stream()
        parts = [stream.push(number) for number in row]
        assert "".join([*parts, stream.finish()]) == text
        if "unseen" not in text:
            assert all("\ufffd" not in part for part in parts)


@every
def test_text_that_looks_like_a_control_token_stays_text(tmp_path: Path, kind: str) -> None:
    theirs = write(tmp_path, kind)
    ours = read_hub_tokenizer(tmp_path).source
    special = set(theirs.all_special_ids) - {ours.unk}
    for token in theirs.all_special_tokens:
        (ids,) = ours.encode([f"a{token}b {token}"])
        assert not special & set(ids), token


@pytest.mark.parametrize("kind", ["mbart", "m2m_100"])
def test_models_of_many_languages_name_them_where_they_expect_them(tmp_path: Path, kind: str) -> None:
    """mBART 25: text </s> en_XX; NLLB: eng_Latn text </s>. The output begins with the target language."""
    names = ("en_XX", "de_DE") if kind == "mbart" else ("eng_Latn", "deu_Latn")
    backend, _, config = unigram()
    backend.add_special_tokens(list(names))
    source, target = (backend.token_to_id(name) for name in names)
    order = f"$A </s> {names[0]}" if kind == "mbart" else f"{names[0]} $A </s>"
    backend.post_processor = processors.TemplateProcessing(order, None, [("</s>", 1), (names[0], source)])
    backend.save(str(tmp_path / "tokenizer.json"))
    config |= {"model_type": kind, "decoder_start_token_id": 1, "vocab_size": backend.get_vocab_size()}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>", "pad_token": "<pad>"}', encoding="utf-8")
    frames = read_hub_tokenizer(tmp_path, *names).source.frames
    (expected,) = (encoding.ids for encoding in backend.encode_batch([""]))
    assert [*frames.source_begin, *frames.source_end] == expected
    assert frames.target_begin == (1, target)
    with pytest.raises(UserError, match=f"give --source-language, such as {names[0]}, {names[1]}"):
        read_hub_tokenizer(tmp_path)
    with pytest.raises(UserError, match="does not know the target language xx; give one such as"):
        read_hub_tokenizer(tmp_path, names[0], "xx")


def test_older_files_give_the_same(tmp_path: Path) -> None:
    """vocab.json and merges.txt, vocab.txt: what there was before tokenizer.json."""
    for kind, files in (("gpt2", ["vocab.json", "merges.txt"]), ("bert", ["vocab.txt"])):
        directory = tmp_path / kind
        directory.mkdir()
        write(directory, kind)
        expected = read_hub_tokenizer(directory).source
        document = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
        (directory / "tokenizer.json").unlink()
        vocabulary = document["model"]["vocab"]
        if kind == "gpt2":
            merges = ["#version: 0.2", *(" ".join(pair) for pair in document["model"]["merges"])]
            contents = [json.dumps(vocabulary), "\n".join(merges) + "\n"]
        else:
            contents = ["\n".join(sorted(vocabulary, key=lambda piece: int(vocabulary[piece]))) + "\n"]
        for name, content in zip(files, contents, strict=True):
            (directory / name).write_text(content, encoding="utf-8")
        found = read_hub_tokenizer(directory).source
        assert found.encode(TEXTS) == expected.encode(TEXTS)
        assert found.frames == expected.frames


@pytest.mark.parametrize("family", ["encoder-decoder", "causal-decoder", "encoder"])
def test_our_tokenizers_are_read_by_transformers(tmp_path: Path, family: Any) -> None:
    ours = Tokenizer.learn(CORPUS, TokenizerSettings(size=300, mask=True))
    write_hub_tokenizer(tmp_path, TokenizerPair(ours, ours), family)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    texts = ["The fox isn't lazy.", "café 你好", "a  b"]
    for text, ids in zip(texts, ours.encode(texts), strict=True):
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        begin, end = {
            "encoder-decoder": ((), (ours.eos,)),
            "causal-decoder": ((ours.bos,), ()),
            "encoder": ((ours.bos,), (ours.eos,)),
        }[family]
        assert theirs(text)["input_ids"] == [*begin, *ids, *end]
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.mask_token_id) == (0, 2, 4)


def test_foreign_tokenizers_are_given_back(tmp_path: Path) -> None:
    theirs = write(tmp_path, "bart")
    (tmp_path / "back").mkdir()
    write_hub_tokenizer(tmp_path / "back", read_hub_tokenizer(tmp_path))
    back = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "back")
    assert back(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]


def test_what_is_missing_or_damaged_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json: cannot be read"):
        read_hub_tokenizer(tmp_path)
    write(tmp_path, "gpt2")
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json: is not valid JSON"):
        read_hub_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer\.json; write one"):
        read_hub_tokenizer(tmp_path)


def whisper(directory: Path, *, multilingual: bool) -> Backend:
    backend, _, _ = byte_level("gpt2")
    languages = ["<|en|>", "<|de|>", "<|transcribe|>", "<|translate|>"] if multilingual else []
    backend.add_special_tokens(["<|startoftranscript|>", *languages, "<|notimestamps|>"])
    backend.save(str(directory / "tokenizer.json"))
    start, size = backend.token_to_id("<|startoftranscript|>"), backend.get_vocab_size()
    config = {"model_type": "whisper", "decoder_start_token_id": start, "vocab_size": size, "eos_token_id": 0}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generation = {"is_multilingual": multilingual, "suppress_tokens": [5, 9, -1], "eos_token_id": 0}
    (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return backend


def test_whisper_is_told_language_and_task(tmp_path: Path) -> None:
    backend = whisper(tmp_path, multilingual=True)
    pair = read_hub_tokenizer(tmp_path, None, "de")
    words = ["<|startoftranscript|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>"]
    assert [backend.id_to_token(number) for number in pair.target_begin] == words
    assert {5, 9} <= set(pair.target.forbidden)
    assert backend.id_to_token(read_hub_tokenizer(tmp_path).target_begin[1]) == "<|en|>"
    with pytest.raises(UserError, match="does not know the target language xx"):
        read_hub_tokenizer(tmp_path, None, "xx")


def test_whisper_of_one_language_is_told_the_start_only(tmp_path: Path) -> None:
    backend = whisper(tmp_path, multilingual=False)
    begin = [backend.id_to_token(number) for number in read_hub_tokenizer(tmp_path).target_begin]
    assert begin == ["<|startoftranscript|>", "<|notimestamps|>"]


def test_what_a_file_would_cut_off_or_fill_up_stays_as_it_is(tmp_path: Path) -> None:
    """Sentence encoders store a fixed length, to which the library pads and cuts every text by itself."""
    write(tmp_path, "bert")
    before = read_hub_tokenizer(tmp_path).source
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_padding(length=8)
    backend.enable_truncation(4)
    backend.save(str(tmp_path / "tokenizer.json"))
    after = read_hub_tokenizer(tmp_path).source
    assert after.frames == before.frames
    assert after.encode(TEXTS) == before.encode(TEXTS)


def test_what_the_search_is_told_goes_before_the_model(tmp_path: Path) -> None:
    """generation_config.json is what transformers searches with; its lists of ends are led by that of the tokenizer."""
    write(tmp_path, "bart")
    generation = {"decoder_start_token_id": 0, "forced_bos_token_id": None, "eos_token_id": [7, 2]}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    pair = read_hub_tokenizer(tmp_path)
    assert (pair.target_begin, pair.target_end) == ((0,), 2)


def test_ids_that_the_model_lacks_do_not_come_out(tmp_path: Path) -> None:
    """A token added for padding, for which the model was not enlarged, and a model larger than its vocabulary."""
    theirs = write(tmp_path, "llama")
    theirs.add_special_tokens({"pad_token": "[PAD]"})
    theirs.save_pretrained(tmp_path)
    ours = read_hub_tokenizer(tmp_path).source
    assert ours.pad == ours.eos
    assert ours.size == len(theirs) - 1
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8")) | {"vocab_size": len(theirs) + 5}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ours = read_hub_tokenizer(tmp_path).source
    assert (ours.size, ours.pad) == (len(theirs) + 5, theirs.pad_token_id)
    assert ours.decode([[ours.size - 1]]) == [""]
    assert ours.pieces([ours.size - 1]) == [f"<{ours.size - 1}>"]


def test_text_that_looks_special_is_text_to_transformers_too(tmp_path: Path) -> None:
    ours = Tokenizer.learn(CORPUS, TokenizerSettings(size=300, mask=True))
    write_hub_tokenizer(tmp_path, TokenizerPair(ours, ours))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "<s> a</s>b <pad><mask> <unk>"
    assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode([text])[0]


def test_two_tokenizers_have_no_place_there(tmp_path: Path) -> None:
    pair = [Tokenizer.learn(CORPUS, TokenizerSettings(size=size)) for size in (300, 310)]
    with pytest.raises(UserError, match="convert without the tokenizer"):
        write_hub_tokenizer(tmp_path, TokenizerPair(*pair))
    assert not any(tmp_path.iterdir())


def test_old_bert_files_need_no_names(tmp_path: Path) -> None:
    """The first BERT directories have vocab.txt and config.json, and a class that knows the rest."""
    write(tmp_path, "bert")
    expected = read_hub_tokenizer(tmp_path).source
    vocabulary = Backend.from_file(str(tmp_path / "tokenizer.json")).get_vocab()
    for path in tmp_path.glob("*token*"):
        path.unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n", "utf-8")
    found = read_hub_tokenizer(tmp_path).source
    assert found.frames == expected.frames
    assert found.encode([*TEXTS, "[MASK] [SEP]"]) == expected.encode([*TEXTS, "[MASK] [SEP]"])
    names = ("pad", "bos", "eos", "unk", "mask")
    assert [getattr(found, name) for name in names] == [getattr(expected, name) for name in names]
    assert found.decode([[found.bos, *found.encode(["the fox"])[0], found.eos]]) == ["the fox"]
