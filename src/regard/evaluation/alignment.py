"""Which words of a source and its target stand for each other, by what the model attends to when it says the target.

Each target token is linked with the source token that the attention over the encoder's output weighs most at the
position that says it, among those that have a part of a word. Words are linked where tokens of theirs are.

Shapes: B batch, H heads, T target positions, S source positions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from regard.data.alignment import Link, pharaoh
from regard.evaluation.forced import Forced, read_pairs
from regard.model.attention import reading
from regard.model.settings import AlignmentHead
from regard.model.transformer import EncoderDecoder
from regard.search.engine import Translation
from regard.search.inputs import whole_characters
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.text.words import Span, words, words_of_tokens


@dataclass(frozen=True)
class Alignment:
    """Which words of two texts stand for each other. `str` of it is in the format of Pharaoh, as in `0-0 1-2`."""

    source: str
    target: str
    source_words: tuple[Span, ...]
    """The characters [start, end) of each word: what stands between white space, or a piece of a text without."""
    target_words: tuple[Span, ...]
    links: tuple[Link, ...]
    """(place among the source's words, place among the target's), ascending; none of a pair that was not read."""

    def __str__(self) -> str:
        return pharaoh(self.links)


def usual_head(model: EncoderDecoder) -> AlignmentHead:
    """Where alignments are read unless a head has learned them: all heads of the last layer but one.

    They are the best on average (Garg et al. 2019, arXiv 1909.02074, section 4.2; benchmarks/alignments.py).
    """
    return AlignmentHead(layer=max(len(model.decoder) - 2, 0), head=None)


def align(
    model: EncoderDecoder,
    tokenizers: TokenizerPair,
    pairs: Iterable[tuple[str, str]],
    head: AlignmentHead | None = None,
    batch_tokens: int = 4096,
    *,
    patience: float | None = None,
    workers: int = 1,
    name: str = "pairs",
) -> Iterator[Alignment]:
    """Align each (source, target) pair, in order, whatever the target came from.

    The model must be in evaluation mode. A pair with more tokens than the model can read has no links, and a warning
    names its line.

    Args:
        head: where to read them; unset: `usual_head`.
        batch_tokens, patience, workers, name: see `read_pairs`.
    """
    work = partial(linked_tokens, model, tokenizers, head or usual_head(model))
    whole = ((whole_characters(source), whole_characters(target)) for source, target in pairs)
    how: dict[str, Any] = {"patience": patience, "workers": workers, "name": name}
    for pair in read_pairs(model, tokenizers, whole, work, "aligned", batch_tokens, **how):
        source_tokens = tokenizers.source.spans([pair.source])[0]
        target_tokens = tokenizers.target.spans([pair.target])[0]
        source_words, target_words = words(pair.source, source_tokens), words(pair.target, target_tokens)
        source_of = words_of_tokens(pair.source, source_words, source_tokens)
        target_of = words_of_tokens(pair.target, target_words, target_tokens)
        links = {
            (left, right)
            for source, target in pair.result or ()
            for left in source_of[source]
            for right in target_of[target]
        }
        yield Alignment(pair.source, pair.target, tuple(source_words), tuple(target_words), tuple(sorted(links)))


TranslationT = TypeVar("TranslationT", bound=Translation)


def with_alignments(
    texts: Iterable[str],
    translate: Callable[[Iterable[str]], Iterator[TranslationT]],
    align: Callable[[Iterable[tuple[str, str]]], Iterator[Alignment]],
) -> Iterator[tuple[TranslationT, Alignment]]:
    """Translate texts as they come, and align each with the best of its translations, in order.

    Whether what has come waits for more is decided by `translate` and `align`, which may read ahead.
    """
    sources: deque[str] = deque()
    translations: deque[TranslationT] = deque()

    def remembered() -> Iterator[str]:
        for text in texts:
            sources.append(text)
            yield text

    def pairs() -> Iterator[tuple[str, str]]:
        for translation in translate(remembered()):
            translations.append(translation)
            yield sources.popleft(), translation.best.text

    for alignment in align(pairs()):
        yield translations.popleft(), alignment


@torch.inference_mode()
def linked_tokens(
    model: EncoderDecoder,
    tokenizers: TokenizerPair,
    head: AlignmentHead,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
) -> list[list[Link]]:
    """The source token of each target token, by the weights of this head, or by the mean of all of its layer."""
    forced = Forced.of(tokenizers, sources, targets, model.output.device)
    with reading(model.memory_attention(head.layer), head.head) as read:
        model(forced.source_BS, forced.source_mask_BS, forced.in_BT)
    assert read.weights_BHTS is not None
    weights_BTS = read.weights_BHTS.mean(dim=1).cpu()
    begin = len(tokenizers.source_begin)
    found: list[list[Link]] = []
    for weights_TS, source, target in zip(weights_BTS, sources, targets, strict=True):
        own_TS = weights_TS[forced.first : forced.first + len(target), begin : begin + len(source)]
        places = _places_in_words(tokenizers.source, source)
        best_T = own_TS[:, places].argmax(dim=1).tolist() if places else []
        found.append([(places[best], number) for number, best in enumerate(best_T)])
    return found


def _places_in_words(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The tokens of a text that are more than white space: a space before a word may be a token of its own."""
    (text,) = tokenizer.decode([ids])
    (spans,) = tokenizer.spans([text])
    if len(spans) != len(ids):  # the text was normalised, and is cut otherwise now
        return list(range(len(ids)))
    return [place for place, (start, end) in enumerate(spans) if text[start:end].strip()]
