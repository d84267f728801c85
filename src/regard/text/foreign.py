"""The tokenizer of a Hugging Face model directory, read and written without `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from regard.errors import UserError
from regard.text.lines import atomic_write
from regard.text.tokenizer import Control, Frames, TokenizerPair
from regard.text.vocabulary import Document
from regard.text.wrapped import WrappedTokenizer, Wrapping

Family = Literal["encoder-decoder", "causal-decoder", "encoder"]

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ROLES = ("pad", "bos", "eos", "unk", "mask", "cls", "sep")

_MANY_LANGUAGES = ("mbart", "m2m_100")
_DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")


@dataclass(frozen=True)
class Hub:
    """What the files of a directory say."""

    directory: Path
    config: dict[str, Any]
    document: Document
    names: dict[str, str]
    """The special token of each role."""
    ids: dict[str, int]
    """Numbers that the configuration gives: pad_token_id and so on."""

    def number(self, role: str) -> int | None:
        """The id of a role: by its token, or by the configuration."""
        name = self.names.get(role)
        found = None if name is None else self.id_of(name)
        return self.ids.get(f"{role}_token_id") if found is None else found

    def id_of(self, token: str) -> int | None:
        """The id of a token of the vocabulary."""
        number: int | None = Backend.from_str(json.dumps(self.document)).token_to_id(token)
        return number

    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the tokenizer puts before and after a text by itself."""
        encoding = Backend.from_str(json.dumps(self.document)).encode("a")
        special = encoding.special_tokens_mask
        before = special.index(0) if 0 in special else len(special)
        after = special[::-1].index(0) if 0 in special else 0
        return tuple(encoding.ids[:before]), tuple(encoding.ids[len(special) - after :])


def read_hub_tokenizer(
    directory: Path, source_language: str | None = None, target_language: str | None = None
) -> TokenizerPair:
    """The tokenizer of a model directory of `transformers`, with its control ids and what stands around a text.

    A model of one text (an encoder, a decoder) has a pair of one and the same: take its `source`.

    Args:
        source_language, target_language: for a model of many languages, as it names them (`en_XX`, `eng_Latn`, `en`,
            `fra` of `>>fra<<`).

    Raises:
        UserError: files are missing or damaged, or a language is unknown or needed.
    """
    config = _json(directory / "config.json")
    try:
        if config.get("model_type") == "marian" and not (directory / TOKENIZER).exists():
            return _marian(directory, config, target_language)
        hub = _hub(directory, config, _document(directory))
        frames = _frames(hub, source_language, target_language)
        tokenizer = _wrap(hub, frames)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{directory}: the tokenizer is damaged ({error!r}); fetch the directory again") from None
    return TokenizerPair(tokenizer, tokenizer)


def write_hub_tokenizer(directory: Path, tokenizers: TokenizerPair, family: Family = "encoder-decoder") -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, which `transformers` reads as a `PreTrainedTokenizerFast`.

    Raises:
        UserError: the two sides have different tokenizers, for which that format has no place.
    """
    if not tokenizers.joint:
        raise UserError("the source and the target have different tokenizers, for which that format has no place")
    tokenizer = tokenizers.source
    document = dict(tokenizer.wrapping.tokenizer if isinstance(tokenizer, WrappedTokenizer) else tokenizer.document)
    names = {role: _name(document, getattr(tokenizer, role)) for role in ("pad", "bos", "eos", "unk", "mask")}
    frames = tokenizer.frames
    around = {
        "encoder-decoder": (frames.source_begin, frames.source_end),
        "causal-decoder": (frames.begin, ()),
        "encoder": (frames.begin, frames.end),
    }[family]
    document["post_processor"] = _template(document, *around)
    config: dict[str, Any] = {f"{role}_token": name for role, name in names.items() if name is not None}
    if family == "encoder":  # the names by which encoders know the same two
        config |= {"cls_token": config.get("bos_token"), "sep_token": config.get("eos_token")}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, content in ((TOKENIZER, document), (TOKENIZER_CONFIG, config)):
        with atomic_write(directory / name) as file:
            file.write(json.dumps(content, ensure_ascii=False, indent=1).encode("utf-8") + b"\n")


def _hub(directory: Path, config: dict[str, Any], document: Document) -> Hub:
    names: dict[str, str] = {}
    for file in ("special_tokens_map.json", TOKENIZER_CONFIG):
        values = _json(directory / file, missing={})
        for role in ROLES:
            token = values.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                names[role] = token
    ids: dict[str, int] = {}
    for values in (_json(directory / "generation_config.json", missing={}), config):
        for key, value in values.items():
            number = value[0] if isinstance(value, list) and value else value
            if key.endswith("_token_id") and isinstance(number, int):
                ids[key] = number
    return Hub(directory, config, document, names, ids)


def _document(directory: Path) -> Document:
    """The library's document: as it stands there, or made from the files that came before it."""
    if (directory / TOKENIZER).exists():
        return _json(directory / TOKENIZER)
    vocabulary, merges = directory / "vocab.json", directory / "merges.txt"
    if vocabulary.exists() and merges.exists():
        backend = Backend(models.BPE.from_file(str(vocabulary), str(merges)))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    elif (directory / "vocab.txt").exists():
        backend = Backend(models.WordPiece.from_file(str(directory / "vocab.txt"), unk_token="[UNK]"))
        lower = bool(_json(directory / TOKENIZER_CONFIG, missing={}).get("do_lower_case", True))
        backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
    else:
        raise UserError(
            f"{directory}: has no {TOKENIZER}; write one with transformers "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...)), or convert without the tokenizer"
        )
    document: Document = json.loads(backend.to_str())
    return document


def _frames(hub: Hub, source_language: str | None, target_language: str | None) -> Frames:
    begin, end = hub.frame()
    kind = hub.config.get("model_type", "")
    if not (begin or end) and kind in ("bert", "roberta", "xlm-roberta", "bart"):  # files older than the library's
        first, last = (("bos", "eos"), ("cls", "sep"))[kind == "bert"]
        begin, end = (_needed(hub, first),), (_needed(hub, last),)
    added = _json(hub.directory / TOKENIZER_CONFIG, missing={}).get("add_bos_token")
    bos = hub.number("bos")
    if added is not None and bos is not None and kind in _DECODERS:
        begin = (bos,) if added else ()
    eos = _end(hub)
    start = hub.ids.get("decoder_start_token_id", eos if kind in ("bart", *_MANY_LANGUAGES) or bos is None else bos)
    forced = hub.ids.get("forced_bos_token_id")
    target_begin = (start,) if forced is None else (start, forced)
    source_begin, source_end = begin, end
    if kind in _MANY_LANGUAGES:
        source, target = (_language(hub, name, side) for name, side in _sides(source_language, target_language))
        after = bool(end) and end[-1] != eos  # mBART 25 and the first NLLB: the language after the text
        source_begin, source_end = ((), (eos, source)) if after else ((source,), (eos,))
        target_begin = (start, target) if start != target else (target,)
    return Frames(
        begin=begin,
        end=() if kind in _DECODERS else end,
        source_begin=source_begin,
        source_end=source_end,
        target_begin=target_begin,
        target_end=eos,
    )


def _sides(source: str | None, target: str | None) -> Iterable[tuple[str | None, str]]:
    return ((source, "source"), (target, "target"))


def _language(hub: Hub, name: str | None, side: str) -> int:
    """The id of a language of a model of many."""
    special = [token["content"] for token in hub.document.get("added_tokens", ())]
    if hub.config.get("model_type") == "marian":
        special = [piece for piece, _ in hub.document["model"]["vocab"] if piece.startswith(">>")]
    known = [token for token in special if "_" in token.strip("_") or token.startswith(("__", ">>"))]
    some = f"such as {', '.join(known[:5])}" if known else "as its vocabulary names it"
    if name is None:
        raise UserError(f"{hub.directory}: translates many languages; give --{side}-language, {some}")
    for spelled in (f"__{name}__", f">>{name.strip('<>')}<<", name):
        number = hub.id_of(spelled)
        if spelled in special and number is not None:
            return number
    raise UserError(f"{hub.directory}: does not know the {side} language {name}; give one {some}")


def _end(hub: Hub) -> int:
    named = (hub.id_of(name) for name in ("[SEP]", "</s>"))
    for number in (hub.number("eos"), hub.number("sep"), *named):
        if number is not None:
            return number
    raise UserError(f"{hub.directory}: names no token that ends a text; convert without the tokenizer")


def _needed(hub: Hub, role: str) -> int:
    defaults = {"bos": "<s>", "eos": "</s>", "cls": "[CLS]", "sep": "[SEP]"}
    number = hub.number(role)
    number = hub.id_of(defaults[role]) if number is None else number
    if number is None:
        raise UserError(f"{hub.directory}: the vocabulary has no {defaults[role]}; convert without the tokenizer")
    return number


def _wrap(
    hub: Hub, frames: Frames, sealed: Iterable[int] = (), size: int | None = None, mask_name: str = "[MASK]"
) -> WrappedTokenizer:
    eos = _end(hub)
    pad, mask = hub.number("pad"), hub.number("mask")
    if mask is None:
        mask = next((n for n in map(hub.id_of, (mask_name, "<mask>")) if n is not None), None)
    bos = hub.number("bos")
    bos = hub.number("cls") if bos is None else bos
    control = Control(pad=eos if pad is None else pad, bos=bos, eos=eos, unk=hub.number("unk"), mask=mask)
    special = {token["id"] for token in hub.document.get("added_tokens", ()) if token.get("special")}
    special |= {number for number in (pad, bos, mask, eos, hub.number("sep")) if number is not None}
    special |= {number for number in frames.target_begin if _in_vocabulary(hub, number)}
    vocabulary = hub.config.get("vocab_size") or Backend.from_str(json.dumps(hub.document)).get_vocab_size()
    size = size or int(vocabulary)
    forbidden = {number for number in (pad, bos, mask) if number is not None} - {eos}
    return WrappedTokenizer(
        Wrapping(
            control=control,
            frames=frames,
            size=size,
            special=tuple(sorted(number for number in special if number < size)),
            sealed=tuple(sorted(sealed)),
            forbidden=tuple(sorted(forbidden)),
            tokenizer=hub.document,
        )
    )


def _in_vocabulary(hub: Hub, number: int) -> bool:
    return number < int(hub.config.get("vocab_size", number + 1))


def _marian(directory: Path, config: dict[str, Any], language: str | None) -> TokenizerPair:
    """Marian has one list of pieces for two unigram models, one of each side."""
    vocabulary = _json(directory / "vocab.json")
    size = int(config["vocab_size"])
    pair = []
    for side in ("source", "target"):
        document, sealed = _unigram(directory / f"{side}.spm", vocabulary, size)
        hub = _hub(directory, config, document)
        hub = Hub(directory, config, document, {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, hub.ids)
        eos = _end(hub)
        begin: tuple[int, ...] = ()
        if language is not None:
            begin = (_language(hub, language, "target"),)
        frames = Frames(
            begin=(),
            end=(eos,),
            source_begin=begin,
            source_end=(eos,),
            target_begin=(hub.ids.get("decoder_start_token_id", size - 1),),
            target_end=eos,
        )
        pair.append(_wrap(hub, frames, sealed, size))
    return TokenizerPair(*pair)


def _unigram(path: Path, vocabulary: dict[str, int], size: int) -> tuple[Document, list[int]]:
    """The library's document for a SentencePiece model whose pieces have other ids; and ids that it does not know."""
    try:
        from sentencepiece import sentencepiece_model_pb2 as format_of
    except ImportError:
        raise UserError(f"{path}: needs two more packages to be read: pip install sentencepiece protobuf") from None
    model = format_of.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:  # protobuf has a class of its own for it, in a place that moves
        raise UserError(f"{path}: is no SentencePiece model ({error}); fetch it again") from None
    scores = {piece.piece: piece.score for piece in model.pieces}
    lowest = min(scores.values(), default=0.0)
    entries: list[tuple[str, float]] = [(f"<unused {number}>", lowest) for number in range(size)]
    sealed = set(range(size))
    for piece, number in vocabulary.items():
        entries[number] = piece, scores.get(piece, lowest)
        if piece in scores:
            sealed.discard(number)
    backend = Backend(models.Unigram(entries, unk_id=vocabulary["<unk>"], byte_fallback=False))
    steps: list[Any] = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.normalizer_spec.precompiled_charsmap:
        steps.insert(0, normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap))
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return json.loads(backend.to_str()), sorted(sealed - {vocabulary["<unk>"], vocabulary["</s>"]})


def _json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object from a file."""
    if missing is not None and not path.exists():
        return missing
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: should hold a JSON object")
    return values


def _name(document: Document, number: int | None) -> str | None:
    """How the vocabulary spells an id."""
    return None if number is None else Backend.from_str(json.dumps(document)).id_to_token(number)


def _template(document: Document, begin: tuple[int, ...], end: tuple[int, ...]) -> dict[str, Any] | None:
    """The library's post-processor that puts these ids around a text."""
    if not (begin or end):
        return None
    names = {number: _name(document, number) or "" for number in (*begin, *end)}

    def around(identifier: str) -> list[dict[str, Any]]:
        def tokens(numbers: tuple[int, ...]) -> list[dict[str, Any]]:
            return [{"SpecialToken": {"id": names[number], "type_id": 0}} for number in numbers]

        return [*tokens(begin), {"Sequence": {"id": identifier, "type_id": 0}}, *tokens(end)]

    special = {name: {"id": name, "ids": [number], "tokens": [name]} for number, name in names.items()}
    pair = [*around("A"), *around("B")]
    return {"type": "TemplateProcessing", "single": around("A"), "pair": pair, "special_tokens": special}
