"""Directories as the tokenizer classes of `transformers` write them: ids, frames and texts are theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from regard.errors import UserError
from regard.text.foreign import read_hub_tokenizer
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.text.wrapped import WrappedTokenizer

transformers = pytest.importorskip("transformers")

CORPUS = [
    "The quick brown fox jumps over the lazy dog, 1,234.50 times.",
    "Größe und Straße: café, naïve; 你好，世界！",
    "https://a.b/c?d=1&e=%20 isn't   three  spaces",
] * 3
TEXTS = [
    "",
    " ",
    " leading",
    "trailing ",
    "  two  inner  spaces  ",
    "': 'search'",
    "a , b",
    "tab\tbetween",
    "line\nfeed\r\nand\u2028more\x85",
    "https://a.b/c?d=1&e=%20",
    "1,234.50",
    "👨‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ 1️⃣",
    "ශ්‍රී ලංකාව",
    "می‌خواهم السلام עליכם",
    "e\u0301te\u0301 n\u0303 \u0301start",
    "non\u00a0breaking\u202fspace\u3000wide",
    "\u2581under\u2581 \u2581",
    "龘 unseen 𠮷",
    "\ufffd replacement",
    "don't l'eau ’tis dogs'",
    "x" * 120 + "!" * 30,
]


def pieces(special: list[str]) -> list[tuple[str, float]]:
    """A unigram vocabulary after these special tokens, as SentencePiece models have it."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=120, unk_token="<unk>"))
    learned = [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"] if piece != "<unk>"]
    return [(token, 0.0) for token in special] + learned


def merged(special: list[str], byte_level: bool) -> dict[str, Any]:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if byte_level else None
    if not byte_level:
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    bytes_of = [] if byte_level else [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + 360 + len(bytes_of),
        special_tokens=[*special, *bytes_of],
        initial_alphabet=alphabet,
    )
    backend.train_from_iterator(CORPUS, trainer)
    model = json.loads(backend.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
MBART = ["ar_AR", "cs_CZ", "de_DE", "en_XX", "fr_XX"]


def bert() -> Any:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    return transformers.BertTokenizer(vocab=backend.get_vocab())


KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "bert": (bert, {"model_type": "bert", "pad_token_id": 0}),
    "gpt2": (
        lambda: transformers.GPT2Tokenizer(**merged(["<|endoftext|>"], True)),
        {"model_type": "gpt2", "bos_token_id": 0, "eos_token_id": 0},
    ),
    "roberta": (
        lambda: transformers.RobertaTokenizer(**merged([*FAIRSEQ, "<mask>"], True)),
        {"model_type": "roberta", "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
    ),
    "bart": (
        lambda: transformers.BartTokenizer(**merged([*FAIRSEQ, "<mask>"], True)),
        {"model_type": "bart", "decoder_start_token_id": 2, "forced_bos_token_id": 0},
    ),
    "qwen2": (lambda: transformers.Qwen2Tokenizer(**merged(["<|endoftext|>"], True)), {"model_type": "qwen2"}),
    "llama": (
        lambda: transformers.LlamaTokenizer(**merged(["<unk>", "<s>", "</s>"], False)),
        {"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gemma": (
        lambda: transformers.GemmaTokenizer(**merged(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], False)),
        {"model_type": "gemma", "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0},
    ),
    "t5": (
        lambda: transformers.T5Tokenizer(vocab=pieces(["<pad>", "</s>", "<unk>"]), extra_ids=3),
        {"model_type": "t5", "decoder_start_token_id": 0},
    ),
    "mbart": (
        lambda: transformers.MBartTokenizer(vocab=[*pieces(FAIRSEQ), *((x, 0.0) for x in [*MBART, "<mask>"])]),
        {"model_type": "mbart"},
    ),
    "mbart50": (
        lambda: transformers.MBart50Tokenizer(vocab=[*pieces(FAIRSEQ), *((x, 0.0) for x in [*MBART, "<mask>"])]),
        {"model_type": "mbart", "decoder_start_token_id": 2},
    ),
    "nllb": (
        lambda: transformers.NllbTokenizer(**merged(FAIRSEQ, False)),
        {"model_type": "m2m_100", "decoder_start_token_id": 2},
    ),
}
LANGUAGES = {"mbart": ("en_XX", "de_DE"), "mbart50": ("en_XX", "de_DE"), "nllb": ("eng_Latn", "deu_Latn")}
every = pytest.mark.parametrize("kind", sorted(KINDS))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, TokenizerPair]]:
    """A tokenizer of transformers, and ours read from the directory that it wrote."""

    @cache
    def of(kind: str) -> tuple[Any, TokenizerPair]:
        make, config = KINDS[kind]
        theirs, directory = make(), tmp_path_factory.mktemp(kind)
        theirs.save_pretrained(directory)
        (directory / "config.json").write_text(json.dumps(config | {"vocab_size": len(theirs)}), encoding="utf-8")
        source, target = LANGUAGES.get(kind, (None, None))
        if source:
            theirs.src_lang = source
        return theirs, read_hub_tokenizer(directory, source, target)

    return of


@every
def test_ids_are_theirs(read: Any, kind: str) -> None:
    theirs, pair = read(kind)
    for text, ids in zip(TEXTS, pair.source.encode(TEXTS), strict=True):
        assert ids == theirs(text, add_special_tokens=False)["input_ids"], text


@every
def test_frames_are_theirs(read: Any, kind: str) -> None:
    theirs, pair = read(kind)
    frames, [plain] = pair.source.frames, pair.source.encode(["The fox"])
    ids = theirs("The fox")["input_ids"]
    assert [*frames.source_begin, *plain, *frames.source_end] == ids
    if kind not in LANGUAGES:
        assert [*frames.begin, *plain, *frames.end] == ids


@every
def test_texts_are_theirs(read: Any, kind: str) -> None:
    theirs, pair = read(kind)
    rows = [theirs(text)["input_ids"] for text in TEXTS]
    texts = pair.source.decode(rows)
    for text, ids in zip(texts, rows, strict=True):
        assert text == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        stream = pair.source.stream()
        parts = [stream.push(number) for number in ids]
        assert all(text.startswith("".join(parts[:end])) for end in range(len(parts)))
        assert "".join(parts) + stream.finish() == text


@every
def test_no_text_gives_a_special_id(read: Any, kind: str) -> None:
    theirs, pair = read(kind)
    ours = pair.source
    assert isinstance(ours, WrappedTokenizer)
    special = {*theirs.all_special_ids} - {None}
    for token in theirs.all_special_tokens:
        [ids] = ours.encode([f"{token} a{token}b{token}"])
        assert not (special & set(ids)) - {ours.unk}, token
        assert ours.decode([[theirs.convert_tokens_to_ids(token)]]) == [""]


@every
def test_saved_and_loaded_is_the_same(read: Any, kind: str, tmp_path: Path) -> None:
    _, pair = read(kind)
    pair.save(tmp_path)
    again = TokenizerPair.load(tmp_path)
    assert again.joint
    assert (again.fingerprint, again.source.size) == (pair.fingerprint, pair.source.size)
    assert again.source.frames == pair.source.frames
    assert again.source.encode(TEXTS) == pair.source.encode(TEXTS)
    names = ("pad", "bos", "eos", "unk", "mask", "forbidden")
    assert [getattr(again.source, name) for name in names] == [getattr(pair.source, name) for name in names]


@pytest.mark.parametrize(
    ("kind", "begin"),
    [
        ("t5", ["<pad>"]),
        ("bart", ["</s>", "<s>"]),
        ("mbart", ["de_DE"]),
        ("mbart50", ["</s>", "de_DE"]),
        ("nllb", ["</s>", "deu_Latn"]),
    ],
)
def test_an_output_begins_as_their_models_were_trained(read: Any, kind: str, begin: list[str]) -> None:
    theirs, pair = read(kind)
    assert list(pair.target_begin) == theirs.convert_tokens_to_ids(begin)
    assert pair.target_end == theirs.eos_token_id


@every
def test_an_id_outside_of_the_vocabulary_is_an_error(read: Any, kind: str) -> None:
    ours = read(kind)[1].source
    for number in (-1, ours.size):
        with pytest.raises(IndexError):
            ours.decode([[number]])
        with pytest.raises(IndexError):
            ours.stream().push(number)


def test_half_of_a_surrogate_pair_is_refused(read: Any) -> None:
    with pytest.raises(UserError, match=r"text 2 holds U\+D83E"):
        read("bert")[1].source.encode(["fine", "half \ud83e pair"])


HARMS: dict[str, Callable[[dict[str, Any]], object]] = {
    "an unknown key": lambda content: content.update(more=1),
    "another version": lambda content: content.update(version=2),
    "no control ids": lambda content: content.pop("control"),
    "a control id that is a word": lambda content: content["control"].update(pad="<pad>"),
    "an id beyond the vocabulary": lambda content: content["control"].update(eos=10**6),
    "a begin beyond the vocabulary": lambda content: content["frames"].update(source_begin=[-1]),
    "nothing to begin with": lambda content: content["frames"].update(target_begin=[]),
    "no vocabulary": lambda content: content["tokenizer"].pop("model"),
    "an empty vocabulary": lambda content: content["tokenizer"]["model"].update(vocab={}),
    "a vocabulary of another shape": lambda content: content["tokenizer"]["model"].update(vocab=[1, 2]),
    "a model of another kind": lambda content: content["tokenizer"]["model"].update(type="Python"),
    "added tokens of another shape": lambda content: content["tokenizer"].update(added_tokens=[{}]),
    "a tokenizer of another shape": lambda content: content.update(tokenizer=[]),
}


@pytest.mark.parametrize("harm", sorted(HARMS))
@pytest.mark.parametrize("kind", ["gpt2", "t5", "bert"])
def test_a_harmed_file_is_a_sentence(read: Any, kind: str, harm: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    read(kind)[1].source.save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    HARMS[harm](content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json: .+"):
        Tokenizer.load(path)
