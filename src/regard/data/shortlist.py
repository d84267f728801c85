"""A lexical shortlist: which target tokens a source may be translated with, so that a decoder can leave out the others.

The most frequent tokens are candidates for every source, and each token of a source adds those that most probably
translate it (Jean et al. 2015, arXiv 1412.2007, section 3.2; Devlin 2017, arXiv 1705.01991).

On Multi30k, English to German with 10,000 pieces, the defaults leave 317 candidates for a sentence of the test text of
2016. They hold 98.0% of the tokens that a model translates it with, and 94.4% of the reference's; with a `PER_TOKEN` of
20 it is 97.3% of 196 candidates, with 100 98.5% of 533. Most of what a model says beyond them is no translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from regard.data.lexicon import Lexicon, learn_lexicon
from regard.errors import UserError
from regard.text.lines import atomic_write
from regard.text.tokenizer import TokenizerPair

if TYPE_CHECKING:
    from regard.data.dataset import PairDataset  # reads Arrow files, which whoever only uses a list has no need of

SHORTLIST = "shortlist.safetensors"
FORMAT = "regard.shortlist"

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
        found = np.concatenate([self.always, *lists])
        found.sort()  # and not np.unique, which takes thrice as long for so few
        return found[np.diff(found, prepend=-1) > 0]

    def save(self, path: Path, tokenizers: TokenizerPair) -> None:
        """Write the arrays as safetensors, with the fingerprint of the tokenizers that the ids are of."""
        tensors: dict[str, NDArray[Any]] = {"always": self.always, "offsets": self.offsets, "ids": self.ids}
        with atomic_write(path) as file:
            file.write(save(tensors, {"format": FORMAT, "tokenizers": tokenizers.fingerprint}))

    @classmethod
    def load(cls, path: Path, tokenizers: TokenizerPair) -> Shortlist:
        """Read what `save` wrote.

        Raises:
            UserError: it is damaged, or was made for other tokenizers.
        """
        try:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
                found = cls(tokenizers.target.size, *(file.get_tensor(name) for name in ("always", "offsets", "ids")))
            if metadata.get("format") != FORMAT:
                raise ValueError(f"it is not marked as {FORMAT}")
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (SafetensorError, ValueError) as error:
            raise UserError(f"{path}: is damaged or no shortlist ({error}); copy it again, or remove it") from None
        if metadata.get("tokenizers") != tokenizers.fingerprint or found.source_size != tokenizers.source.size:
            raise UserError(f"{path}: was made for other tokenizers than the model's; remove it")
        found._refuse_damage(path)
        return found

    def _refuse_damage(self, path: Path) -> None:
        arrays = ((self.always, "int32"), (self.offsets, "int64"), (self.ids, "int32"))
        whole = all(array.dtype.name == name and array.ndim == 1 for array, name in arrays) and (
            (self.offsets[0], self.offsets[-1]) == (0, len(self.ids))
            and not np.any(np.diff(self.offsets) < 0)
            and all(0 <= ids.min(initial=0) <= ids.max(initial=0) < self.target_size for ids in (self.always, self.ids))
        )
        if not whole:
            raise UserError(f"{path}: its lists of tokens are damaged; copy it again, or remove it")


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


def learn_shortlist(pairs: PairDataset, tokenizers: TokenizerPair, say: Callable[[str], None]) -> Shortlist:
    """The shortlist of a lexicon that is learned from pairs; what ends and begins a target is always a candidate."""
    lexicon = learn_lexicon(*pairs.sides, tokenizers.source.size, tokenizers.target.size, say=say)
    unknown = () if tokenizers.target.unk is None else (tokenizers.target.unk,)
    always = {tokenizers.target_end, *tokenizers.target_begin, *unknown}
    return make_shortlist(lexicon, always, copies=tokenizers.joint)
