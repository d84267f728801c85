"""The tokenizer of a Hugging Face model directory, read and written without `transformers`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as Backend

from regard.errors import UserError
from regard.settings import read_json
from regard.text.hub import TOKENIZER, TOKENIZER_CONFIG, Files, Hub, document
from regard.text.lines import atomic_write
from regard.text.sentencepieces import read_pieces
from regard.text.tokenizer import Control, Frames, TokenizerPair
from regard.text.wrapped import WrappedTokenizer, Wrapping

log = logging.getLogger("regard")

Family = Literal["encoder-decoder", "causal-decoder", "encoder"]

_MANY_LANGUAGES = ("mbart", "m2m_100")
_DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")
_FRAMED = {"bert": ("cls", "sep"), "roberta": ("bos", "eos"), "xlm-roberta": ("bos", "eos"), "bart": ("bos", "eos")}
"""What stands around a text of models whose older files leave it to the class that reads them."""

_M2M_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
"""Those of M2M100 in the order of their ids (Fan et al. 2020, arXiv 2010.11125), where the files do not name them."""


def read_hub_tokenizer(
    directory: Path, source_language: str | None = None, target_language: str | None = None
) -> TokenizerPair:
    """The tokenizer of a model directory of `transformers`, with its control ids and what stands around a text.

    A model of one text (an encoder, a decoder) has a pair of one and the same: take its `source`.

    Args:
        source_language, target_language: for a model of many languages, as it names them (`en_XX`, `eng_Latn`, `en`,
            `fra` of `>>fra<<`). Whisper writes English unless another target is given.

    Raises:
        UserError: files are missing or damaged, or a language is unknown or needed.
    """
    try:
        files = Files.read(directory)
        if files.kind == "marian" and not (directory / TOKENIZER).exists():
            return _marian(files, target_language)
        sealed: list[int] = []
        if files.kind == "m2m_100" and not (directory / TOKENIZER).exists():
            hub, sealed = _m2m(files)
        else:
            hub = Hub(files, document(files))
        tokenizer = _wrap(hub, _frames(hub, source_language, target_language), sealed)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{directory}: the tokenizer is damaged ({error!r}); fetch the directory again") from None
    return TokenizerPair(tokenizer, tokenizer)


def write_hub_tokenizer(directory: Path, tokenizers: TokenizerPair, family: Family = "encoder-decoder") -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, which `transformers` reads as a `PreTrainedTokenizerFast`.

    Raises:
        UserError: the two sides have different tokenizers, for which that format has no place.
    """
    if not tokenizers.joint:
        raise UserError(
            "the source and the target have different tokenizers, for which the format of transformers has no place; "
            "convert without the tokenizer"
        )
    tokenizer, frames = tokenizers.source, tokenizers.source.frames
    foreign = isinstance(tokenizer, WrappedTokenizer)
    content = dict(tokenizer.wrapping.tokenizer if isinstance(tokenizer, WrappedTokenizer) else tokenizer.document)
    backend = Backend.from_str(json.dumps(content))
    begin, end = {
        "encoder-decoder": (frames.source_begin, frames.source_end),
        "causal-decoder": (frames.begin, ()),
        "encoder": (frames.begin, frames.end),
    }[family]
    content["post_processor"] = _template(backend, begin, end)
    ids = {role: getattr(tokenizer, role) for role in ("pad", "bos", "eos", "unk", "mask")}
    config: dict[str, Any] = {f"{role}_token": backend.id_to_token(n) for role, n in ids.items() if n is not None}
    if family == "encoder":  # the names by which encoders know the same two
        config |= {"cls_token": config.get("bos_token"), "sep_token": config.get("eos_token")}
    elif not foreign:  # an encoder's users write the mask into a text; to others, text that looks special is text
        config["split_special_tokens"] = True
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, values in ((TOKENIZER, content), (TOKENIZER_CONFIG, config)):
        with atomic_write(directory / name) as file:
            file.write(json.dumps(values, ensure_ascii=False, indent=1).encode("utf-8") + b"\n")


def _frames(hub: Hub, source_language: str | None, target_language: str | None) -> Frames:
    files, (begin, end) = hub.files, hub.frame()
    eos, bos = _end(hub), hub.role("bos")
    if not (begin or end) and files.kind in _FRAMED:
        first, last = _FRAMED[files.kind]
        begin, end = (hub.needed(hub.names[first]),), (hub.needed(hub.names[last]),)
    added = files.tokenizer.get("add_bos_token")
    if added is not None and bos is not None and files.kind in _DECODERS:
        begin = (bos,) if added else ()
    source_begin, source_end, target_begin = begin, end, _target_begin(hub, bos, eos)
    if files.kind in _MANY_LANGUAGES:
        source, target = (
            _language(hub, name, side) for name, side in ((source_language, "source"), (target_language, "target"))
        )
        after = bool(end) and end[-1] != eos  # mBART 25 and the first NLLB: the language after the text
        source_begin, source_end = ((), (eos, source)) if after else ((source,), (eos,))
        # A model that was fine-tuned for one language may name that as the beginning, and mBART 25 has no other.
        start = files.number("decoder_start_token_id")
        start = (None if after and files.kind == "mbart" else eos) if start is None else start
        target_begin = (target,) if start is None or start in _languages(hub).values() else (start, target)
    elif files.kind == "whisper":
        source_begin, source_end, target_begin = (), (), _whisper_begin(hub, target_begin[0], target_language)
    return Frames(
        begin=begin,
        end=() if files.kind in _DECODERS else end,
        source_begin=source_begin,
        source_end=source_end,
        target_begin=target_begin,
        target_end=eos,
    )


def _target_begin(hub: Hub, bos: int | None, eos: int) -> tuple[int, ...]:
    start, forced = hub.files.number("decoder_start_token_id"), hub.files.number("forced_bos_token_id")
    if start is None:
        start = eos if hub.files.kind == "bart" or bos is None else bos
    return (start,) if forced is None else (start, forced)


def _whisper_begin(hub: Hub, start: int, language: str | None) -> tuple[int, ...]:
    """Start, language and task where the model has several, no times (Radford et al. 2022, arXiv 2212.04356, 2.3)."""
    begin = [start]
    if hub.files.config.get("is_multilingual", hub.id_of("<|de|>") is not None):
        if language is None:
            log.warning("%s: writes English; --target-language names another language", hub.files.directory)
        number = hub.id_of(f"<|{language or 'en'}|>")
        if number is None:
            raise UserError(f"{hub.files.directory}: does not know the target language {language}; give one such as de")
        begin += [number, hub.needed("<|transcribe|>")]
    times = hub.id_of("<|notimestamps|>")
    return (*begin, *([] if times is None else [times]))


def _language(hub: Hub, name: str | None, side: str) -> int:
    """The id of a language of a model of many."""
    known = _languages(hub)
    some = f"such as {', '.join(list(known)[:5])}" if known else "as its vocabulary names it"
    if name is None:
        raise UserError(f"{hub.files.directory}: translates many languages; give --{side}-language, {some}")
    for spelled in (f"__{name}__", f">>{name.strip('<>')}<<", name):
        if spelled in known:
            return known[spelled]
    raise UserError(f"{hub.files.directory}: does not know the {side} language {name}; give one {some}")


def _languages(hub: Hub) -> dict[str, int]:
    """The tokens of languages and their ids: >>fra<<, __fr__, fr_XX, fra_Latn."""
    if hub.files.kind == "marian":
        pieces: Iterable[str] = hub.backend.get_vocab()
        tokens = sorted(piece for piece in pieces if piece.startswith(">>") and piece.endswith("<<"))
    else:
        tokens = [token["content"] for token in hub.document.get("added_tokens") or ()]
        tokens = [token for token in tokens if token.startswith("__") or "_" in token.strip("_")]
    return {token: number for token in tokens if (number := hub.id_of(token)) is not None}


def _end(hub: Hub) -> int:
    for number in (hub.role("eos"), hub.role("sep"), hub.id_of("[SEP]"), hub.id_of("</s>")):
        if number is not None:
            return number
    raise UserError(f"{hub.files.directory}: names no token that ends a text; convert without the tokenizer")


def _wrap(hub: Hub, frames: Frames, sealed: Iterable[int] = ()) -> WrappedTokenizer:
    eos, bos, pad, mask = frames.target_end, hub.role("bos"), hub.role("pad"), hub.role("mask")
    control = Control(
        pad=eos if pad is None else pad,
        bos=hub.role("cls") if bos is None else bos,
        eos=eos,
        unk=hub.role("unk"),
        mask=mask,
    )
    special = {*hub.special(), *frames.target_begin, eos}
    forbidden = {number for number in (pad, bos, mask, *_suppressed(hub.files)) if number is not None} - {eos}

    def within(numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(number for number in numbers if number < hub.size))

    wrapping = Wrapping(
        control=control,
        frames=frames,
        size=hub.size,
        special=within(special),
        sealed=within(sealed),
        forbidden=within(forbidden),
        tokenizer=hub.document,
    )
    try:
        return WrappedTokenizer(wrapping)
    except UserError as error:
        raise UserError(f"{hub.files.directory}: {error}") from None


def _suppressed(files: Files) -> list[int]:
    """The ids that the directory forbids to a search."""
    words = [word for word in files.config.get("bad_words_ids") or () if len(word) == 1]
    numbers = [*(files.config.get("suppress_tokens") or ()), *(word[0] for word in words)]
    return [number for number in numbers if number >= 0]  # -1 stands for a list of the library that is not ours


def _marian(files: Files, language: str | None) -> TokenizerPair:
    """Marian has a model of pieces for each side, and one list of pieces or two."""
    pair = []
    for side, name in (("source", "vocab.json"), ("target", "target_vocab.json")):
        own = files.directory / name
        numbers = read_json(own if own.exists() else files.directory / "vocab.json")
        names = files.names()
        size, special = files.number("vocab_size"), list(names.values())
        cut, sealed = read_pieces(files.directory / f"{side}.spm", numbers, size, names["unk"], special)
        hub = Hub(files, cut)
        eos = _end(hub)
        start = files.number("decoder_start_token_id")
        frames = Frames(
            begin=(),
            end=(eos,),
            source_begin=() if language is None or side == "target" else (_language(hub, language, "target"),),
            source_end=(eos,),
            target_begin=(hub.needed(names["pad"]) if start is None else start,),
            target_end=eos,
        )
        pair.append(_wrap(hub, frames, sealed))
    return TokenizerPair(*pair)


def _m2m(files: Files) -> tuple[Hub, list[int]]:
    """M2M100: one model of pieces, whose list the languages follow."""
    names = files.names()
    numbers = read_json(files.directory / "vocab.json")
    languages = files.further() or [f"__{code}__" for code in _M2M_LANGUAGES.split()]
    special = list(dict.fromkeys([*names.values(), *languages]))
    path, size = files.directory / "sentencepiece.bpe.model", files.number("vocab_size")
    cut, sealed = read_pieces(path, numbers, size, names["unk"], special)
    return Hub(files, cut), sealed


def _template(backend: Backend, begin: tuple[int, ...], end: tuple[int, ...]) -> dict[str, Any] | None:
    """The library's post-processor that puts these ids around a text."""
    if not (begin or end):
        return None
    names = {number: backend.id_to_token(number) for number in (*begin, *end)}

    def around(identifier: str) -> list[dict[str, Any]]:
        def tokens(numbers: tuple[int, ...]) -> list[dict[str, Any]]:
            return [{"SpecialToken": {"id": names[number], "type_id": 0}} for number in numbers]

        return [*tokens(begin), {"Sequence": {"id": identifier, "type_id": 0}}, *tokens(end)]

    special = {name: {"id": name, "ids": [number], "tokens": [name]} for number, name in names.items()}
    pair = [*around("A"), *around("B")]
    return {"type": "TemplateProcessing", "single": around("A"), "pair": pair, "special_tokens": special}
