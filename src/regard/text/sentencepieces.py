"""SentencePiece models (Kudo and Richardson 2018, arXiv 1808.06226) as documents of the library `tokenizers`.

Marian and M2M100 cut a text with such a model and look its pieces up in a list of their own, `vocab.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from regard.errors import UserError
from regard.text.vocabulary import Document

_NORMAL, _BPE = 1, 2
_UNKNOWN_PENALTY = 10.0
"""What an unknown character costs more than the least likely piece, in SentencePiece and in the library."""


def read_pieces(
    path: Path, numbers: dict[str, int], size: int | None, unknown: str, special: list[str]
) -> tuple[Document, list[int]]:
    """The document that cuts as the model in `path` does, with the ids of `numbers`.

    A piece of the model that has no number there gets one from `size` on, to be counted as unknown.

    Args:
        size: the ids of the model that reads the pieces; None: those of `numbers` and `special`.
        special: tokens without a text, which no text gives, `unknown` among them; those without a number get the next
            ones, in order.

    Returns:
        the document, and the ids that the model does not know: no text gives them, though they stand for text.

    Raises:
        UserError: the file is missing or damaged, or a package that reads it is.
    """
    model = _parse(path)
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == _NORMAL}
    if not scores or unknown not in numbers:
        raise UserError(f"{path}: has no pieces, or the vocabulary no {unknown}; fetch it again")
    numbers = numbers | {
        token: len(numbers) + place for place, token in enumerate(token for token in special if token not in numbers)
    }
    missing = [piece for piece in scores if piece not in numbers]
    beyond = max(size or 0, *(number + 1 for number in numbers.values()))
    places = numbers | {piece: beyond + place for place, piece in enumerate(missing)}
    foreign = {piece for piece in numbers if piece not in scores and piece not in special}
    # A character that only the vocabulary knows is unknown to the model, and is found in the vocabulary afterwards.
    characters = {piece for piece in foreign if len(piece) == 1}
    if model.trainer_spec.model_type == _BPE:
        section: Any = models.BPE(places, _merges(scores), unk_token=unknown, fuse_unk=True)
    else:
        lowest = min(scores.values())
        scores |= dict.fromkeys(characters, lowest - _UNKNOWN_PENALTY)
        section = models.Unigram(_listed(places, scores, lowest), unk_id=places[unknown], byte_fallback=False)
    backend = Backend(section)
    backend.normalizer = _normalizer(model.normalizer_spec)
    always = "always" if model.normalizer_spec.add_dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=always, split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme=always)
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return json.loads(backend.to_str()), sorted(numbers[piece] for piece in foreign - characters)


def _parse(path: Path) -> Any:
    try:
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError:
        raise UserError(f"{path}: needs two more packages to be read: pip install sentencepiece protobuf") from None
    kind: Any = vars(messages)["ModelProto"]  # made when the module is imported, so no type checker sees it
    try:
        return kind.FromString(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:  # a class of protobuf, which has no types
        raise UserError(f"{path}: is no SentencePiece model ({error}); fetch it again") from None


def _listed(places: dict[str, int], scores: dict[str, float], lowest: float) -> list[tuple[str, float]]:
    """The pieces by id; an id that none has is given a name that no text holds."""
    entries = [(f" {number}", lowest) for number in range(max(places.values()) + 1)]
    for piece, number in places.items():
        entries[number] = piece, scores.get(piece, lowest)
    return entries


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every way to join two pieces to a third, the likeliest third first."""
    order = {piece: place for place, piece in enumerate(scores)}
    joins = [
        (-score, order[piece[:cut]], order[piece[cut:]], piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in order and piece[cut:] in order
    ]
    return [(left, right) for *_, left, right in sorted(joins)]


def _normalizer(settings: Any) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if settings.precompiled_charsmap:
        steps.append(normalizers.Precompiled(settings.precompiled_charsmap))
    if settings.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if settings.add_dummy_prefix:
        # The mark of a space is put in front even of a text that begins with that very character.
        steps.append(normalizers.Replace(Regex(r"\A▁"), "▁▁"))
    return normalizers.Sequence(steps)
