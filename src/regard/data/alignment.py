"""Which tokens or words of a source and its target stand for each other, as links (source place, target place)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

from numpy.typing import NDArray

from regard.data.lexicon import Lexicon
from regard.errors import UserError

Link = tuple[int, int]
"""Place in the source, place in the target, both counted from 0."""

_LINK = re.compile(r"([0-9]{1,9})([-p])([0-9]{1,9})")
_AROUND = [step for step in product((-1, 0, 1), repeat=2) if step != (0, 0)]


def symmetrised(forward: Iterable[Link], backward: Iterable[Link]) -> list[Link]:
    """The links of both directions that hold together: "grow-diag-final-and" (Koehn, Och and Marcu 2003).

    At first those that both have. Then, over and over, each of either that has such a one beside it, along one side or
    across, if it links a place that has no link yet; in the end, each of either that links two places without one.
    """
    forward, backward = set(forward), set(backward)
    links = forward & backward
    sources, targets = {source for source, _ in links}, {target for _, target in links}

    def add(link: Link) -> None:
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    waiting, before = sorted((forward | backward) - links), -1
    while len(waiting) != before:
        before = len(waiting)
        for source, target in waiting:
            free = source not in sources or target not in targets
            if free and any((source + right, target + down) in links for right, down in _AROUND):
                add((source, target))
        waiting = [link for link in waiting if link not in links]
    for source, target in (*sorted(forward), *sorted(backward)):
        if source not in sources and target not in targets:
            add((source, target))
    return sorted(links)


def align_both_ways(
    forward: Lexicon, backward: Lexicon, sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]]
) -> list[list[Link]]:
    """The links of each pair of token ids by the lexica of both directions; each pair has tokens on both sides."""
    there, back = forward.align(sources, targets), backward.align(targets, sources)
    return [
        symmetrised(
            ((source, target) for target, source in enumerate(one.tolist()) if source >= 0),
            ((source, target) for source, target in enumerate(other.tolist()) if target >= 0),
        )
        for one, other in zip(there, back, strict=True)
    ]


def pharaoh(links: Iterable[Link]) -> str:
    """Links in the format of Pharaoh, as in `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in links)


class Pharaoh(NamedTuple):
    """A line of a file of alignments."""

    sure: frozenset[Link]
    """As in `0-0`."""
    possible: frozenset[Link]
    """As in `0p0`, and the sure ones too."""


def parse_pharaoh(line: str, origin: str) -> Pharaoh:
    """Read a line; `UserError` names `origin` and what is no link."""
    sure, possible = set(), set()
    for word in line.split():
        match = _LINK.fullmatch(word)
        if match is None:
            raise UserError(f"{origin}: {word!r} is no link; alignments look like 0-0 1-2, or 0p0 for a possible link")
        link = int(match[1]), int(match[3])
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Pharaoh(frozenset(sure), frozenset(possible))
