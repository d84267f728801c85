"""The words of a text, as spans of its characters [start, end), and the tokens that they are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence

Span = tuple[int, int]

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts written without spaces, as a range of a regular expression: Thai, Lao, Burmese, Khmer, kana, ideographs."""
_VISIBLE = re.compile(r"\S+")
_UNSPACED = re.compile(f"[{UNSPACED}]")


def words(text: str, tokens: Sequence[Span]) -> list[Span]:
    """The words of a text: what stands between white space; beside characters of scripts without spaces, its tokens.

    `tokens` are those that the text is cut into, in order.
    """
    cuts = [start for start in _free_starts(tokens) if start and _UNSPACED.search(text, start - 1, start + 1)]
    found, waiting = [], iter([*cuts, len(text) + 1])
    cut = next(waiting)
    for match in _VISIBLE.finditer(text):
        start, end = match.span()
        while cut < end:
            if cut > start:
                found.append((start, cut))
                start = cut
            cut = next(waiting)
        found.append((start, end))
    return found


def words_of_tokens(text: str, words: Sequence[Span], tokens: Sequence[Span]) -> list[list[int]]:
    """For each token the numbers of the words that it has a part of: none for white space alone."""
    word_of: list[int | None] = [None] * len(text)
    for number, (start, end) in enumerate(words):
        word_of[start:end] = [number] * (end - start)
    return [list(dict.fromkeys(each for each in word_of[start:end] if each is not None)) for start, end in tokens]


def _free_starts(tokens: Sequence[Span]) -> list[int]:
    """Where a token begins and none goes on; several tokens may be parts of one character."""
    starts, reached = [], 0
    for start, end in tokens:
        if start >= reached and end > start:
            starts.append(start)
        reached = max(reached, end)
    return starts
