from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import product

import pytest
import torch

from regard.evaluation.alignment import Alignment, align, usual_head, with_alignments
from regard.evaluation.alignment_error import AlignmentErrors
from regard.model.attention import reading, watching
from regard.model.reference import AttentionValues
from regard.model.settings import AlignmentHead, ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.search.engine import Translation, translate
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SOURCE = ["a small  dog runs", "", "two men talk about the weather", "tea", "the quick brown fox jumps over the dog"]
TARGET = ["ein kleiner Hund läuft", "nichts", "zwei Männer reden", "", "der schnelle braune Fuchs 跳过 die"]
PAIRS = list(zip(SOURCE, TARGET, strict=True))


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    source, target = (Tokenizer.learn(lines * 3, TokenizerSettings(size=300)) for lines in (SOURCE, TARGET))
    return TokenizerPair(source, target)


def build(tokenizers: TokenizerPair, **settings: object) -> EncoderDecoder:
    torch.manual_seed(3)
    values = {"d_model": 16, "d_ff": 32, "heads": 4, "encoder_layers": 2, "decoder_layers": 3, "dropout": 0.5}
    values |= {"tie": "none", **settings}
    return EncoderDecoder(ModelSettings.parse(values, "test"), tokenizers.source.size, tokenizers.target.size).eval()


def by_watching(
    model: EncoderDecoder, tokenizers: TokenizerPair, source: str, target: str, head: AlignmentHead
) -> set[tuple[int, int]]:
    """Links of words, of one pair by itself, by what is watched of all attention: words are cut at spaces."""
    seen: list[AttentionValues] = []
    source_ids, target_ids = tokenizers.source.encode([source])[0], tokenizers.target.encode([target])[0]
    with watching(seen.append), torch.no_grad():
        model(torch.tensor([[*source_ids, tokenizers.source.eos]]), None, torch.tensor([[1, *target_ids]]))
    # That of the encoder's layers comes first, then of each layer of the decoder to itself and to the memory.
    weights_HTS = seen[len(model.encoder) + 2 * head.layer + 1].weights_BHTS[0]
    weights_TS = weights_HTS.mean(dim=0) if head.head is None else weights_HTS[head.head]
    links = set()
    for place in range(len(target_ids) if source_ids else 0):
        inked = [number for number in range(len(source_ids)) if word(tokenizers.source, source_ids, number)]
        best = max(inked, key=lambda number: float(weights_TS[place, number]))
        links |= set(product(word(tokenizers.source, source_ids, best), word(tokenizers.target, target_ids, place)))
    return links


def word(tokenizer: Tokenizer, ids: list[int], place: int) -> list[int]:
    """The word that a token is part of, if it has letters."""
    before, token = tokenizer.decode([ids[:place]])[0], tokenizer.decode([ids[: place + 1]])[0]
    if token[len(before) :].strip() == "":
        return []
    return [len(token.split()) - 1]


@pytest.mark.parametrize("batch_tokens", [1, 10_000])
@pytest.mark.parametrize("head", [None, AlignmentHead(layer=2, head=3), AlignmentHead(layer=0, head=None)])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_links_are_those_of_the_attention_of_each_pair_alone(
    tokenizers: TokenizerPair, batch_tokens: int, head: AlignmentHead | None, kv_heads: int
) -> None:
    model = build(tokenizers, kv_heads=kv_heads)
    pairs = [pair for pair in PAIRS if "跳" not in pair[1]]
    found = list(align(model, tokenizers, pairs, head, batch_tokens))
    assert any(each.links for each in found)
    for alignment, (source, target) in zip(found, pairs, strict=True):
        expected = by_watching(model, tokenizers, source, target, head or AlignmentHead(layer=1, head=None))
        assert set(alignment.links) == expected


@pytest.mark.parametrize("space", ["  ", "\t", "\u00a0", "\u2003 ", " \u3000"])
@pytest.mark.parametrize("head", [None, AlignmentHead(layer=2, head=3)])
def test_every_target_word_has_a_link_whatever_stands_between_words(
    tokenizers: TokenizerPair, space: str, head: AlignmentHead | None
) -> None:
    pairs = [(source.replace(" ", space), target) for source, target in PAIRS if source]
    for alignment in align(build(tokenizers), tokenizers, pairs, head):
        assert {target for _, target in alignment.links} == set(range(len(alignment.target_words)))


def test_words_are_spans_of_characters(tokenizers: TokenizerPair) -> None:
    first, empty, *_, last = align(build(tokenizers), tokenizers, PAIRS)
    assert [first.source[start:end] for start, end in first.source_words] == ["a", "small", "dog", "runs"]
    assert [first.target[start:end] for start, end in first.target_words] == TARGET[0].split()
    assert {target for _, target in first.links} == {0, 1, 2, 3}
    assert {source for source, _ in first.links} <= {0, 1, 2, 3}
    assert empty == Alignment("", "nichts", (), ((0, 6),), ())
    assert [last.target[start:end] for start, end in last.target_words][-3:] == ["Fuchs", "跳过", "die"]


def test_what_a_head_says_is_written_as_pharaoh_does() -> None:
    assert str(Alignment("a b", "c d", ((0, 1), (2, 3)), ((0, 1), (2, 3)), ((0, 1), (1, 0)))) == "0-1 1-0"


def test_the_usual_head_is_that_of_the_last_layer_but_one(tokenizers: TokenizerPair) -> None:
    assert usual_head(build(tokenizers)) == AlignmentHead(layer=1, head=None)
    assert usual_head(build(tokenizers, decoder_layers=1)) == AlignmentHead(layer=0, head=None)


def test_what_is_too_long_has_no_links_and_half_characters_are_replaced(
    tokenizers: TokenizerPair, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(tokenizers, max_length=12)
    pairs = [("tea", "x" * 40), ("tea \ud83d", "zwei")]
    with caplog.at_level(logging.WARNING, "regard"):
        long, half = align(model, tokenizers, pairs, name="file")
    assert long == Alignment("tea", "x" * 40, ((0, 3),), ((0, 40),), ())
    assert "file, line 1: has" in caplog.text
    assert "not aligned: split the line" in caplog.text
    assert half.source == "tea \ufffd"
    assert half.source_words == ((0, 3), (4, 5))


@pytest.mark.parametrize("patience", [None, 0.01])
def test_texts_are_translated_and_aligned_as_they_come(tokenizers: TokenizerPair, patience: float | None) -> None:
    model = build(tokenizers)
    settings = SearchSettings(beam=2, extra_tokens=3)

    def translated(texts: Iterable[str]) -> Iterator[Translation]:
        return translate(model, tokenizers, texts, settings, patience=patience)

    def aligned(pairs: Iterable[tuple[str, str]]) -> Iterator[Alignment]:
        return align(model, tokenizers, pairs, patience=patience)

    found = list(with_alignments(SOURCE, translated, aligned))
    assert [each.best.text for each, _ in found] == [each.best.text for each in translated(SOURCE)]
    pairs = [(source, each.best.text) for source, (each, _) in zip(SOURCE, found, strict=True)]
    assert [alignment for _, alignment in found] == list(align(model, tokenizers, pairs))


def test_the_alignment_error_rate_by_hand() -> None:
    errors = AlignmentErrors()
    errors.add({(0, 0), (1, 1), (2, 2)}, sure={(0, 0), (1, 2)}, possible={(1, 1)})
    # A = 3, S = 2, A and S = 1, A and P = 2.
    assert errors.rate == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert (errors.precision, errors.recall) == pytest.approx((2 / 3, 1 / 2))
    errors.add({(0, 0)}, sure={(0, 0)})
    assert errors.rate == pytest.approx(1 - (2 + 3) / (4 + 3))


def test_no_links_no_rate_and_the_right_ones_no_error() -> None:
    errors = AlignmentErrors()
    assert errors.rate != errors.rate
    errors.add([(0, 1), (2, 2)], [(2, 2), (0, 1)])
    assert errors.rate == 0


@pytest.mark.parametrize("head", [0, 3, None])
def test_weights_are_kept_with_their_gradient_and_change_nothing(tokenizers: TokenizerPair, head: int | None) -> None:
    model = build(tokenizers)
    source_BS, target_BT = torch.randint(5, 60, (3, 6)), torch.randint(5, 60, (3, 4))
    real_BS = torch.arange(6) < torch.tensor([[6], [4], [2]])
    before = model(source_BS, real_BS, target_BT)
    with reading(model.memory_attention(1), head) as read:
        assert torch.equal(model(source_BS, real_BS, target_BT), before)
    assert read.weights_BHTS is not None
    assert read.weights_BHTS.shape == (3, 4 if head is None else 1, 4, 6)
    assert (read.weights_BHTS[1, :, :, 4:] == 0).all()
    read.weights_BHTS[..., 0].sum().backward()
    rows = model.memory_attention(1).in_projection.weight.grad.view(3, 4, 4, 16).abs().sum(dim=(2, 3))
    touched = [head] if head is not None else [0, 1, 2, 3]
    assert [number for number in range(4) if rows[0, number] > 0] == touched  # queries
    assert [number for number in range(4) if rows[1, number] > 0] == touched  # keys
    assert (rows[2] == 0).all()  # values take no part in the weights
