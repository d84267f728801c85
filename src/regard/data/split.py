"""Held-out pairs that share no text with the training pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from regard.data.corpus import Pair


@dataclass(frozen=True)
class Split:
    """The three parts of a corpus."""

    train: list[Pair] = field(default_factory=list)
    dev: list[Pair] = field(default_factory=list)
    test: list[Pair] = field(default_factory=list)


def split(pairs: Iterable[Pair], held_out: int) -> Split:
    """Set aside `held_out` of the distinct pairs for dev and as many for test; the order of the pairs is kept.

    Pairs that share a text on either side, directly or through other pairs, stay in one part. The choice follows a
    hash of the texts, so it does not depend on the order of the pairs. Dev and test are smaller than asked
    only where whole groups of connected pairs do not fill them exactly.
    """
    distinct = list(dict.fromkeys(pairs))
    groups = _connected(distinct)
    parts = Split()
    for name in sorted(groups, key=lambda text: sha256(text.encode("utf-8", "surrogatepass")).digest()):
        room = (part for part in (parts.test, parts.dev) if len(part) + len(groups[name]) <= held_out)
        next(room, parts.train).extend(groups[name])
    place = {pair: index for index, pair in enumerate(distinct)}
    for part in (parts.train, parts.dev, parts.test):
        part.sort(key=place.__getitem__)
    return parts


def _connected(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """The groups of pairs connected by shared texts, each under the smallest of its texts (union-find)."""
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        while parent.setdefault(text, text) != text:
            parent[text] = parent[parent[text]]
            text = parent[text]
        return text

    for source, target in pairs:
        smaller, larger = sorted((root(source), root(target)))
        parent[larger] = smaller
    groups = defaultdict(list)
    for pair in pairs:
        groups[root(pair[0])].append(pair)
    return groups
