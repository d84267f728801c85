"""Pairs of lines: read from files, and cleaned with every dropped pair accounted for."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from regard.settings import Settings
from regard.text.lines import read_pairs, read_tsv
from regard.text.words import UNSPACED

Pair = tuple[str, str]
"""Source and target text of one line."""


def open_pairs(source: Path, target: Path | None = None) -> Iterator[Pair]:
    """Stream the pairs of two parallel files or, without `target`, of one file of two tab-separated columns.

    Plain or gzip, UTF-8. Raises `UserError` with file and line for an unequal number of lines, a line without
    exactly two columns, or text that is not UTF-8.
    """
    return read_tsv(source) if target is None else read_pairs(source, target)


_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


def count_words(text: str) -> int:
    """The number of words: runs without white space; in scripts written without spaces, single characters."""
    return len(text.split()) if text.isascii() else len(_WORD.findall(text))


class SeenPairs:
    """The pairs met so far, as a hash of 8 bytes each in an open table: 12 to 24 bytes a pair.

    Among n pairs the chance that one is wrongly taken as seen is about n^2 / 2^65: 1e-6 for five million.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._count = 0

    def add(self, source: str, target: str) -> bool:
        """Remember a pair; True if it was not there before."""
        digest = blake2b(f"{source}\n{target}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
        value = int.from_bytes(digest, "little") or 1  # 0 marks a free slot
        slot = self._find(value)
        if self._slots[slot] == value:
            return False
        self._slots[slot] = value
        self._count += 1
        if 3 * self._count > 2 * len(self._slots):
            self._grow()
        return True

    def _find(self, value: int) -> int:
        slots, mask = self._slots, len(self._slots) - 1
        slot = value & mask
        while slots[slot] not in (0, value):
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        before = self._slots
        self._slots = array("Q", bytes(16 * len(before)))
        for value in before:
            if value:
                self._slots[self._find(value)] = value


class CleaningSettings(Settings):
    """What `clean` changes and drops. A word is what `count_words` counts."""

    white_space: Literal["keep", "strip", "fold"] = "strip"
    """Keep it, strip it from both ends of a line, or also fold each run of it into one space."""
    drop_empty: bool = True
    """Drop pairs with a side that is empty or only white space."""
    min_words: int = Field(default=0, ge=0)
    """Drop pairs with fewer words on a side."""
    max_words: int = Field(default=200, ge=1)
    """Drop pairs with more words on a side."""
    max_ratio: float = Field(default=9.0, ge=1.0)
    """Drop pairs whose longer side has more than this many times the words of the shorter."""
    drop_identical: bool = False
    """Drop pairs whose two sides are the same text."""
    deduplicate: bool = True
    """Keep only the first of equal pairs (remembers 12 to 24 bytes for each pair)."""


@dataclass
class Dropped:
    """How many pairs one rule dropped, and the first of them."""

    count: int
    line: int
    source: str
    target: str


@dataclass
class CleaningReport:
    """What `clean` did, filled while its result is consumed."""

    read: int = 0
    kept: int = 0
    changed: int = 0
    """Kept pairs whose white space was changed."""
    dropped: dict[str, Dropped] = field(default_factory=dict)
    """By reason."""


class _Measured(NamedTuple):
    source: str
    target: str
    shorter: int
    longer: int


def _rules(settings: CleaningSettings) -> list[tuple[str, Callable[[_Measured], bool]]]:
    """The reasons to drop a pair; the first that applies is reported."""
    rules: list[tuple[str, Callable[[_Measured], bool]]] = []
    if settings.drop_empty:
        rules.append(("empty side", lambda pair: pair.shorter == 0))
    rules += [
        (f"fewer than {settings.min_words} words", lambda pair: pair.shorter < settings.min_words),
        (f"more than {settings.max_words} words", lambda pair: pair.longer > settings.max_words),
        (
            f"length ratio above {settings.max_ratio:g}",
            lambda pair: pair.longer > settings.max_ratio * max(pair.shorter, 1),
        ),
    ]
    if settings.drop_identical:
        rules.append(("source and target identical", lambda pair: pair.source == pair.target))
    if settings.deduplicate:
        seen = SeenPairs()
        rules.append(("duplicate", lambda pair: not seen.add(pair.source, pair.target)))
    return rules


_TIDY: dict[str, Callable[[str], str]] = {
    "keep": lambda text: text,
    "strip": str.strip,
    "fold": lambda text: " ".join(text.split()),
}


def clean(pairs: Iterable[Pair], settings: CleaningSettings, report: CleaningReport) -> Iterator[Pair]:
    """Stream the pairs that `settings` keep, in order, and account in `report` for those it drops.

    Memory does not grow with the corpus, but for the hashes of `deduplicate`.
    """
    rules, tidy = _rules(settings), _TIDY[settings.white_space]
    for line, pair in enumerate(pairs, start=1):
        report.read = line
        source, target = tidy(pair[0]), tidy(pair[1])
        shorter, longer = sorted((count_words(source), count_words(target)))
        measured = _Measured(source, target, shorter, longer)
        reason = next((name for name, applies in rules if applies(measured)), None)
        if reason is None:
            report.kept += 1
            report.changed += (source, target) != pair
            yield source, target
        elif reason in report.dropped:
            report.dropped[reason].count += 1
        else:
            report.dropped[reason] = Dropped(1, line, *pair)
