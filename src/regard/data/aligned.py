"""A file of links for the pairs of a data set (see `regard.data.arrow`): column `links`, source and target in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, product
from pathlib import Path

import numpy as np
import pyarrow as pa

from regard.data.alignment import Link, align_both_ways
from regard.data.arrow import ArrowFile, Lists, arrow_schema, damaged, list_of
from regard.data.corpus import Pair
from regard.data.dataset import PairDataset
from regard.data.encoding import CHUNK_ROWS, PackedLists, in_chunks
from regard.data.lexicon import learn_lexicon
from regard.errors import UserError
from regard.text.lines import atomic_write
from regard.text.tokenizer import TokenizerPair
from regard.text.words import words, words_of_tokens

FORMAT = "regard.links"
KIND = "links"


def learned_links(pairs: PairDataset, tokenizers: TokenizerPair, first: int = 0) -> Iterator[list[Link]]:
    """The links of the tokens of each pair from the `first` on, by lexica of both directions learned from all."""
    if first == len(pairs):
        return
    sources, targets = pairs.sides
    sizes = tokenizers.source.size, tokenizers.target.size
    forward, backward = learn_lexicon(sources, targets, *sizes), learn_lexicon(targets, sources, *reversed(sizes))
    for indices in in_chunks(range(first, len(pairs)), CHUNK_ROWS):
        chosen = [pairs.pair(index) for index in indices]
        yield from align_both_ways(forward, backward, *zip(*chosen, strict=True))


def links_of_tokens(tokenizers: TokenizerPair, pair: Pair, links: Iterable[Link], origin: str) -> list[Link]:
    """Links of words, which stand between white space, as links of all of their tokens.

    Raises:
        UserError: a link is of a word that is not there; `origin` is named.
    """
    sides = []
    for tokenizer, text in zip((tokenizers.source, tokenizers.target), pair, strict=True):
        tokens, found = tokenizer.spans([text])[0], words(text, ())
        of_words: list[list[int]] = [[] for _ in found]
        for token, numbers in enumerate(words_of_tokens(text, found, tokens)):
            for number in numbers:
                of_words[number].append(token)
        sides.append(of_words)
    sources, targets = sides
    for source, target in links:
        if source >= len(sources) or target >= len(targets):
            raise UserError(
                f"{origin}: {source}-{target} links words that are not there: the texts have {len(sources)} and "
                f"{len(targets)} words, counted from 0"
            )
    return sorted({each for source, target in links for each in product(sources[source], targets[target])})


def write_links(path: Path, links: Iterable[Iterable[Link]]) -> int:
    """Write the links of each pair, in order, to a file that appears once it is complete; returns how many there are.

    Raises:
        JobError: the disk is full.
    """
    schema, count = arrow_schema(FORMAT, {KIND: list_of(pa.uint32())}, {}), 0
    with atomic_write(path) as file, pa.ipc.new_file(file, schema) as writer:
        for chunk in in_chunks(links, CHUNK_ROWS):
            packed = PackedLists.of([list(chain.from_iterable(each)) for each in chunk], np.uint32)
            writer.write_batch(pa.record_batch([packed.arrow()], schema=schema))
            count += len(packed.values) // 2
    return count


def open_links(path: Path, pairs: PairDataset) -> Lists:
    """Map a file of links of these pairs.

    Raises:
        UserError: it is missing, damaged, or not of these pairs.
    """
    links = ArrowFile.open(path, FORMAT, KIND, [KIND], {}).lists(0, KIND, [np.uint32])
    if len(links) != len(pairs) or np.any(links.lengths % 2):
        raise damaged(path, KIND, "it is not of these pairs")
    return links
