"""Vocabularies that grow: tags, and further pieces learned from other text. All ids keep their meaning.

New pieces go on where byte pair encoding ended: its merges are applied after all those from before. So a text is cut
as it was, and then some of its pieces are joined; without a new piece in it, it has the ids that it always had.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from itertools import islice

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import BpeTrainer

from regard.errors import UserError
from regard.text.learned import LearnedTokenizer
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import Document, pieces

log = logging.getLogger("regard")

_FIRST = 0x10000
"""The character that stands for id 0 while merges of pieces are learned: no white space comes after it."""


def with_tags(tokenizer: Tokenizer, names: Iterable[str]) -> Tokenizer:
    """The same vocabulary with a tag of each name, those that it has already left as they are.

    Raises:
        UserError: the tokenizer came with somebody else's model.
    """
    new = [name for name in dict.fromkeys(names) if name not in tokenizer.tags]
    if not new:
        return tokenizer
    document = _own(tokenizer, "gets no tags").document
    return LearnedTokenizer(_appended(document, [f"<{name}>" for name in new]))


def extended(tokenizer: Tokenizer, lines: Iterable[str], count: int) -> Tokenizer:
    """The same vocabulary with `count` further pieces, those that the text most often has side by side.

    Too little text gives fewer, with a warning.

    Raises:
        UserError: the tokenizer is not one of byte pair encoding that was learned here.
    """
    own = _own(tokenizer, "cannot be extended")
    if own.document["model"]["type"] != "BPE":
        raise UserError("only a vocabulary of byte pair encoding (tokenizer.kind: bpe) can be extended; leave that out")
    known = pieces(own.document)
    # None of them is spelled like a piece that is there: between the same borders its letters were joined to it before.
    merges = [
        ["".join(known[ord(letter) - _FIRST] for letter in side) for side in merge]
        for merge in _merges_of_pieces(own, lines, count)
    ]
    if len(merges) < count:
        log.warning("%d new pieces were asked for, but the text has no more than %d", count, len(merges))
    document = _appended(own.document, ["".join(merge) for merge in merges])
    model = document["model"]
    return LearnedTokenizer(document | {"model": model | {"merges": [*_merges(document), *merges]}})


def made_of(before: Tokenizer, after: Tokenizer) -> list[tuple[int, ...]]:
    """For each id that `after` has and `before` has not, the ids of `before` that it is made of; none for a tag.

    Raises:
        ValueError: `after` did not grow out of `before`.
    """
    if before.fingerprint == after.fingerprint:
        return []
    old, new = pieces(before.document), pieces(after.document)
    if new[: len(old)] != old:
        raise ValueError("the vocabulary did not grow out of the other")
    parts: dict[str, tuple[int, ...]] = {piece: (number,) for number, piece in enumerate(old)}
    for left, right in _merges(after.document):
        parts.setdefault(left + right, (*parts[left], *parts[right]))
    return [parts.get(piece, ()) for piece in new[len(old) :]]


def _own(tokenizer: Tokenizer, what: str) -> LearnedTokenizer:
    if not isinstance(tokenizer, LearnedTokenizer):
        raise UserError(f"the vocabulary of a model that was converted {what}; leave that out")
    return tokenizer


def _merges(document: Document) -> list[list[str]]:
    """The merges of byte pair encoding, in their order; other kinds have none."""
    merges = document["model"].get("merges", ())
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]


def _appended(document: Document, new: list[str]) -> Document:
    model = document["model"]
    vocab = model["vocab"]
    if isinstance(vocab, list):
        longer = [*vocab, *([piece, 0.0] for piece in new)]
    else:
        longer = vocab | {piece: len(vocab) + place for place, piece in enumerate(new)}
    return document | {"model": model | {"vocab": longer}}


def _letter(number: int) -> str:
    return chr(_FIRST + number)


def _merges_of_pieces(tokenizer: LearnedTokenizer, lines: Iterable[str], count: int) -> list[tuple[str, str]]:
    """The merges that byte pair encoding learns when it begins with whole pieces, each spelled by one character."""
    learner = Backend(BPE())
    learner.pre_tokenizer = WhitespaceSplit()
    trainer = BpeTrainer(
        vocab_size=tokenizer.size + count,
        min_frequency=2,
        initial_alphabet=list(map(_letter, range(tokenizer.size))),
        show_progress=False,
    )
    learner.train_from_iterator(_spelled_by_pieces(tokenizer, lines), trainer)
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges]


def _spelled_by_pieces(tokenizer: LearnedTokenizer, lines: Iterable[str]) -> Iterator[str]:
    backend = Backend.from_str(json.dumps(tokenizer.document))
    remaining = iter(lines)
    while some := list(islice(remaining, 1000)):
        for encoding in backend.encode_batch(some, add_special_tokens=False):
            words = zip(encoding.ids, encoding.word_ids, [None, *encoding.word_ids], strict=False)
            yield "".join(_letter(number) if word == last else f" {_letter(number)}" for number, word, last in words)
