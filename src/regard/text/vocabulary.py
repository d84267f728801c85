"""What a `tokenizer.json` holds, and how its vocabulary is learned.

All three kinds of tokenizer share one path from text to ids: normalise as stated, put one space in front (so that the
first word of a line is the same piece as that word after a space), cut into words, spell each word in bytes, and let
the model join bytes into pieces. Every byte is a piece of its own, so nothing is ever unknown and no character is
lost. What differs is the model:

* bpe: byte pair encoding (Sennrich et al. 2016, arXiv 1508.07909) over bytes, as in GPT-2;
* wordpiece: the same vocabulary, applied by longest match first (Wu et al. 2016, arXiv 1609.08144);
* unigram: the most probable split under a unigram model (Kudo 2018, arXiv 1804.10959).

Control tokens, and tags that say what a source is, stand in the vocabulary only. They are not registered as tokens to
be looked for in text, and no word can spell one, because words never mix letters with signs: text that looks like `<s>`
stays text.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from pydantic import Field
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer, Trainer, UnigramTrainer, WordPieceTrainer

from regard.errors import UserError
from regard.settings import Settings

log = logging.getLogger("regard")

Document = dict[str, Any]
"""The content of a `tokenizer.json`."""

CONTROL = ("<pad>", "<s>", "</s>", "<unk>")
"""The first pieces of every vocabulary: padding, begin, end, and unknown (reserved; no text gives it)."""

MASK = "<mask>"
"""The piece after them, in a vocabulary for masked language models."""

TAG = re.compile(r"<[a-z][a-z0-9-]*>")
"""How the name of a tag is spelled: no learned piece is, for none has letters and signs."""


def _letters_of_bytes() -> dict[str, int]:
    # Printable Latin-1 bytes are spelled by their own character, the others by the characters from U+0100 on.
    printable = set(ByteLevel.alphabet())
    others = iter(range(256, 512))
    return {chr(byte if chr(byte) in printable else next(others)): byte for byte in range(256)}


BYTES = _letters_of_bytes()
"""The value of each of the 256 characters that pieces are spelled with."""

SMALLEST = len(CONTROL) + len(BYTES)
"""The smallest possible vocabulary: no pieces but the single bytes. One with a mask has one more."""

# A word is, after at most one space: letters, with the marks and joiners that belong to them and apostrophes between
# them (Unicode Standard Annex 29, WB4 to WB7); or one digit, so that numbers are copied digit by digit and no piece is
# spent on a number that was frequent by chance; or a run of other signs. White space beyond that one space is a run of
# its own. The bounds keep time and memory in check for writing without spaces and for junk.
_LETTER = r"\p{L}[\p{M}\x{200C}\x{200D}]{0,8}"
_WORD = "|".join(
    [
        rf" ?{_LETTER}(?:['’]?{_LETTER}){{0,63}}",
        r" ?\p{N}\p{M}{0,8}",
        r" ?[^\s\p{L}\p{N}]{1,64}",
        r"\s{1,64}(?!\S)",
        r"\s{1,64}",
    ]
)


class TokenizerSettings(Settings):
    """How text is cut into subwords."""

    kind: Literal["bpe", "wordpiece", "unigram"] = "bpe"
    """The model of subwords: byte pair encoding, WordPiece or a unigram model."""
    size: int | None = Field(None, gt=0, lt=2**31)
    """The number of pieces, 4 control tokens and 256 bytes included; absent: chosen from the size of the corpus."""
    lowercase: bool = False
    """Turn text to lower case, character by character, before anything else sees it. Decoding can't undo that."""
    normalization: Literal["none", "nfc", "nfkc"] = "none"
    """The Unicode normalisation form that text is brought to, before lower case."""
    joint: bool = True
    """One vocabulary for source and target, as in the paper (section 5.1)."""
    mask: bool = False
    """A further control token, `<mask>`, which a masked language model fills in."""

    @property
    def control(self) -> tuple[str, ...]:
        """The control tokens, in the order of their ids."""
        return (*CONTROL, MASK) if self.mask else CONTROL


def _as_learned(vocab: Any, controls: int, size: int) -> Any:
    return vocab


@dataclass(frozen=True)
class _Kind:
    """One model of subwords: how the library learns it, and how its `model` section reads."""

    trainer: Callable[[dict[str, Any]], Trainer]
    section: dict[str, Any]
    blank: Callable[[tuple[str, ...]], dict[str, Any]]
    """The parts of the section that are learned, as they are before: the control tokens only."""
    canonical: Callable[[Any, int, int], Any] = _as_learned


def _canonical_scores(vocab: list[list[Any]], controls: int, size: int) -> list[list[Any]]:
    """The same vocabulary every time: the learner's scores hold noise from the order in which its threads add them up.

    Bytes that the text never needed get scores that depend on that order wholly; here they share the lowest one.
    Three decimals of a log-probability are all that matters for the best split. The learner may also exceed a small
    size; the least likely pieces go.
    """
    lowest = min(score for _, score in vocab)
    unused = lowest + 1e-4 * len(BYTES)
    ranked = sorted(
        (
            [piece, round(lowest if piece in BYTES and score < unused else score, 3)]
            for piece, score in vocab[controls:]
        ),
        key=lambda entry: (-entry[1], entry[0]),
    )
    joined = [entry for entry in ranked if entry[0] not in BYTES]
    surplus = {piece for piece, _ in joined[size - controls - len(BYTES) :]}
    return vocab[:controls] + [entry for entry in ranked if entry[0] not in surplus]


def _ids(control: tuple[str, ...]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(control)}


_KINDS = {
    # A pair seen once teaches nothing about the language: merges need two.
    "bpe": _Kind(
        trainer=lambda common: BpeTrainer(min_frequency=2, **common),
        section={
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
        },
        blank=lambda control: {"vocab": _ids(control), "merges": []},
    ),
    # The usual mark of a continued word (##) isn't needed, for a word's start is marked by its space; with it the
    # library would also give ids in the order of a hash table. The bound lies above what _WORD lets through.
    "wordpiece": _Kind(
        trainer=lambda common: WordPieceTrainer(min_frequency=2, continuing_subword_prefix="", **common),
        section={
            "type": "WordPiece",
            "unk_token": CONTROL[3],
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": 10_000,
        },
        blank=lambda control: {"vocab": _ids(control)},
    ),
    # The library considers only pieces that occur in two different words, so it cuts finer than the others do; 48 bytes
    # are 16 characters of most scripts.
    "unigram": _Kind(
        trainer=lambda common: UnigramTrainer(unk_token=CONTROL[3], max_piece_length=48, **common),
        section={"type": "Unigram", "unk_id": 3, "byte_fallback": False},
        blank=lambda control: {"vocab": [[piece, 0.0] for piece in control]},
        canonical=_canonical_scores,
    ),
}


def _document(settings: TokenizerSettings, model: dict[str, Any]) -> Document:
    """The whole file: apart from the settings, only what is learned (vocabulary, merges) is taken from `model`."""
    kind = _KINDS[settings.kind]
    normalizers = [{"type": settings.normalization.upper()}] if settings.normalization != "none" else []
    normalizers += [{"type": "Lowercase"}] if settings.lowercase else []
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [*normalizers, {"type": "Prepend", "prepend": " "}]},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _WORD}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": kind.section | {part: model[part] for part in kind.blank(CONTROL)},
    }


def learn(lines: Iterable[str], settings: TokenizerSettings) -> Document:
    """Learn a vocabulary of `settings.size` pieces; the same counts of words give the same vocabulary.

    Among pairs that are equally frequent, byte pair encoding joins the one with the smallest ids first.
    The lines are gone through once, and only the distinct words are kept. Too little text for the size gives a smaller
    vocabulary and a warning with the reached size.

    Raises:
        UserError: the text is empty, holds half of a surrogate pair, or the size leaves no room for the bytes.
        ValueError: `settings.size` is None.
    """
    if settings.size is None:
        raise ValueError("the size of the vocabulary must be chosen before learning")
    smallest = len(settings.control) + len(BYTES)
    if settings.size < smallest:
        raise UserError(
            f"a vocabulary of {settings.size} is too small: {len(settings.control)} control tokens and "
            f"{len(BYTES)} bytes are always in it, so the smallest size is {smallest}"
        )
    kind = _KINDS[settings.kind]
    backend = Backend.from_str(json.dumps(_document(settings, kind.blank(settings.control))))
    trainer = kind.trainer(
        {
            "vocab_size": settings.size,
            "special_tokens": list(settings.control),
            "initial_alphabet": list(BYTES),
            "show_progress": False,
        }
    )
    try:
        backend.train_from_iterator(_with_text(lines), trainer)
    except UnicodeEncodeError as error:
        raise UserError(f"the text to learn from holds half of a surrogate pair: {error.object[:40]!r}") from None
    learned = json.loads(backend.to_str())["model"]
    vocab = kind.canonical(learned["vocab"], len(settings.control), settings.size)
    document = _document(settings, learned | {"vocab": vocab})
    reached = len(pieces(document))
    if reached < settings.size:
        log.warning(
            "a vocabulary of %d was asked for, but the text has no more than %d pieces; it has %d now",
            settings.size,
            reached,
            reached,
        )
    return document


def _with_text(lines: Iterable[str]) -> Iterator[str]:
    empty = True
    for line in lines:
        empty = empty and not line
        yield line
    if empty:
        raise UserError("a tokenizer cannot be learned from an empty text; give a file with at least one word")


def pieces(document: Document) -> list[str]:
    """Every piece in the order of the ids, spelled in the characters of `BYTES`, control tokens as they are."""
    vocab = document["model"]["vocab"]
    return [piece for piece, _ in vocab] if isinstance(vocab, list) else sorted(vocab, key=vocab.__getitem__)


def control(spelled: list[str]) -> dict[int, str]:
    """The pieces that stand for no text, by id: the first ones, the mask where there is one, and all tags."""
    return {number: piece for number, piece in enumerate(spelled) if number < len(CONTROL) or TAG.fullmatch(piece)}


def parse(text: str, origin: str) -> Document:
    """The content of a `tokenizer.json`, accepted only if it is one that `learn` could have made.

    Raises:
        UserError: naming `origin`, for anything else: other formats, damaged files, pieces without bytes.
    """
    document = _accepted(text)
    if document is None:
        raise UserError(
            f"{origin}: is damaged, or is not a tokenizer that this version of regard makes; "
            "fetch it again or learn one with `regard data tokenizer`"
        )
    return document


def _accepted(text: str) -> Document | None:
    try:
        document: Document = json.loads(text)
        model = document["model"]
        [kind] = [name for name, kind in _KINDS.items() if kind.section["type"] == model["type"]]
        forms = (_document(settings, model) for settings in _every_setting(kind))
        return document if document in forms and _sound(document) else None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _every_setting(kind: str) -> Iterator[TokenizerSettings]:
    for lowercase, normalization in product((False, True), ("none", "nfc", "nfkc")):
        values = {"kind": kind, "lowercase": lowercase, "normalization": normalization}
        yield TokenizerSettings.model_validate(values)


def _sound(document: Document) -> bool:
    """Control tokens first, ids without gaps, every byte present, and nothing that isn't bytes."""
    vocab, spelled = document["model"]["vocab"], pieces(document)
    controls = control(spelled)
    if isinstance(vocab, list):
        numbered = all(math.isfinite(score) for _, score in vocab)
    else:
        numbered = sorted(vocab.values()) == list(range(len(vocab)))
    words = [piece for number, piece in enumerate(spelled) if number not in controls]
    return (
        numbered
        and tuple(spelled[: len(CONTROL)]) == CONTROL
        and MASK not in spelled[len(CONTROL) + 1 :]
        and len(set(spelled)) == len(spelled)
        and BYTES.keys() <= set(words)
        and all(word and set(word) <= BYTES.keys() for word in words)
    )
