"""A lexical shortlist: which target tokens a source may be translated with, so that a decoder can leave out the others.

The most frequent tokens are candidates for every source, and each token of a source adds those that most probably
translate it (Jean et al. 2015, arXiv 1412.2007, section 3.2; Devlin 2017, arXiv 1705.01991).

On Multi30k, English to German with 10,000 pieces, the defaults leave 317 candidates for a sentence of the test text of
2016. They hold 98.0% of the tokens that a model translates it with, and 94.4% of the reference's; with a `PER_TOKEN` of
20 it is 97.3% of 196 candidates, with 100 98.5% of 533. Most of what a model says beyond them is no translation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from regard.data.lexicon import Lexicon
from regard.errors import UserError
from regard.text.lines import atomic_write

FILE = "shortlist.safetensors"

FIRST = 100
"""So many most frequent tokens are candidates for every source."""
PER_TOKEN = 50
"""So many candidates each source token adds."""

Ids = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Shortlist:
    """Candidates by source token, flat: those of source id s are `ids[offsets[s] : offsets[s + 1]]`."""

    target_size: int
    always: Ids
    """Candidates for every source, ascending."""
    offsets: NDArray[np.int64]
    """One more than there are source ids."""
    ids: Ids
    """The likeliest first."""

    @property
    def source_size(self) -> int:
        return len(self.offsets) - 1

    def candidates(self, source_ids: Sequence[int]) -> Ids:
        """The target ids that a source may be translated with, ascending, each once."""
        offsets = self.offsets
        lists = [self.ids[offsets[number] : offsets[number + 1]] for number in dict.fromkeys(source_ids)]
        return np.unique(np.concatenate([self.always, *lists]))

    def save(self, path: Path) -> None:
        """Write the arrays as safetensors."""
        size = np.array([self.target_size])
        tensors = {"target_size": size, "always": self.always, "offsets": self.offsets, "ids": self.ids}
        with atomic_write(path) as file:
            file.write(save(tensors))

    @classmethod
    def load(cls, path: Path, source_size: int, target_size: int) -> Shortlist:
        """Read what `save` wrote.

        Raises:
            UserError: it is damaged, or was not made for vocabularies of these sizes.
        """
        try:
            tensors = load_file(path)
            found = cls(int(tensors["target_size"].item()), *(tensors[name] for name in ("always", "offsets", "ids")))
            found._refuse_damage()
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (SafetensorError, KeyError, ValueError) as error:
            raise UserError(f"{path}: is damaged or no shortlist ({error}); copy it again, or remove it") from None
        if (found.source_size, found.target_size) != (source_size, target_size):
            raise UserError(
                f"{path}: is for vocabularies of {found.source_size:,} and {found.target_size:,} pieces, not for the "
                f"model's of {source_size:,} and {target_size:,}; remove it"
            )
        return found

    def _refuse_damage(self) -> None:
        arrays = ((self.always, "int32"), (self.offsets, "int64"), (self.ids, "int32"))
        if any(array.dtype.name != name or array.ndim != 1 for array, name in arrays):
            raise ValueError("its arrays are of another kind")
        offsets = self.offsets
        whole = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == len(self.ids)
        if not whole or np.any(np.diff(offsets) < 0):
            raise ValueError("its lists are not whole")
        ids = np.concatenate((self.always, self.ids))
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.target_size:
            raise ValueError("it holds ids beyond its vocabulary")


def make_shortlist(
    lexicon: Lexicon,
    always: Iterable[int] = (),
    first: int = FIRST,
    per_token: int = PER_TOKEN,
    *,
    copies: bool = False,
) -> Shortlist:
    """The shortlist of a lexicon.

    Args:
        always: ids that are candidates for every source, beside the `first` most frequent ones.
        per_token: so many of the likeliest translations each source token adds; those of the empty word go to all.
        copies: each source token may also stay as it is, both sides having one vocabulary.
    """
    source_of, target_of = np.divmod(lexicon.keys, lexicon.target_size)
    by_probability = np.lexsort((target_of, -lexicon.probabilities, source_of))
    starts = np.searchsorted(source_of, np.arange(lexicon.source_size + 2))
    rank = np.arange(len(source_of)) - starts[source_of]  # the order within a source, which sorting left in place
    chosen = by_probability[(rank < per_token) & (lexicon.probabilities[by_probability] > 0)]
    sources, targets = source_of[chosen], target_of[chosen]
    if copies:
        everything = np.arange(lexicon.source_size)
        sources, targets = np.concatenate((sources, everything)), np.concatenate((targets, everything))
    frequent = np.argsort(-lexicon.frequencies, kind="stable")[:first]
    fixed = np.unique(
        np.concatenate((np.fromiter(always, np.int64), frequent, targets[sources == lexicon.source_size]))
    )
    kept = (sources < lexicon.source_size) & ~np.isin(targets, fixed)
    sources, targets = sources[kept], targets[kept]
    order = np.argsort(sources, kind="stable")
    offsets = np.searchsorted(sources[order], np.arange(lexicon.source_size + 1))
    return Shortlist(lexicon.target_size, fixed.astype(np.int32), offsets, targets[order].astype(np.int32))
