"""Tokenizers learned from a corpus."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

from regard.data.corpus import Pair, count_words
from regard.text.extension import extended, with_tags
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

log = logging.getLogger("regard")

SAMPLE = 2_000_000
"""Most pairs to learn from; more of them change few entries."""


def vocabulary_size(words: int) -> int:
    """A size of vocabulary that suits a corpus of so many words.

    From 1,000 to 32,000 in steps of 500: 6,000 for 270,000 words, 8,000 for 700,000 (Multi30k, both sides), 32,000
    from 100 million on (WMT). The curve joins sizes that are in use; it has no theory behind it.
    """
    size = 8000 * math.pow(words / 700_000, 0.28)
    return min(max(round(size / 500) * 500, 1000), 32_000)


def learn_tokenizers(pairs: Callable[[], Iterable[Pair]], settings: TokenizerSettings) -> TokenizerPair:
    """Learn the tokenizers of a parallel corpus: one of both sides, or with `joint: false` one of each.

    `pairs` opens the corpus anew each time it is called. Of a corpus above `SAMPLE` pairs every n-th is used. Without
    a size in the settings, `vocabulary_size` gives it.
    """
    total, words = 0, [0, 0]
    for source, target in pairs():
        total += 1
        words[0] += count_words(source)
        words[1] += count_words(target)
    step = _step(total)

    def sample() -> Iterator[Pair]:
        return islice(pairs(), 0, None, step)

    if settings.joint:
        both = _learn(chain.from_iterable(sample()), sum(words), settings)
        return TokenizerPair(both, both)
    return TokenizerPair(
        _learn((source for source, _ in sample()), words[0], settings),
        _learn((target for _, target in sample()), words[1], settings),
    )


def learn_tokenizer(texts: Callable[[], Iterable[str]], settings: TokenizerSettings) -> Tokenizer:
    """The same for a corpus of one text."""
    total = words = 0
    for text in texts():
        total += 1
        words += count_words(text)
    return _learn(islice(texts(), 0, None, _step(total)), words, settings)


def extend_tokenizers(pairs: Callable[[], Iterable[Pair]], tokenizers: TokenizerPair, count: int) -> TokenizerPair:
    """The same tokenizers with `count` further pieces, learned from a parallel corpus: one of both sides, or each.

    Raises:
        UserError: they are not of byte pair encoding, or not learned here.
    """
    step = _step(sum(1 for _ in pairs()))

    def sample() -> Iterator[Pair]:
        return islice(pairs(), 0, None, step)

    if tokenizers.joint:
        both = extended(tokenizers.source, chain.from_iterable(sample()), count)
        return TokenizerPair(both, both)
    return TokenizerPair(
        extended(tokenizers.source, (source for source, _ in sample()), count),
        extended(tokenizers.target, (target for _, target in sample()), count),
    )


def tag_sources(tokenizers: TokenizerPair, names: Iterable[str]) -> TokenizerPair:
    """The same tokenizers with tags of these names for sources; where one serves both sides, it still does.

    Raises:
        UserError: the source's tokenizer gets no tags (see `with_tags`).
    """
    source = with_tags(tokenizers.source, names)
    return TokenizerPair(source, source if tokenizers.joint else tokenizers.target)


def _step(total: int) -> int:
    step = -(-total // SAMPLE) or 1
    if step > 1:
        log.info("learning from every %d-th of %s texts", step, f"{total:,}")
    return step


def _learn(lines: Iterable[str], words: int, settings: TokenizerSettings) -> Tokenizer:
    size = settings.size or vocabulary_size(words)
    return Tokenizer.learn(lines, settings.model_copy(update={"size": size}))
