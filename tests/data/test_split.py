"""Held-out pairs share no text with training pairs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regard.data.split import split

# Few letters, so that texts are shared often and chains of pairs form.
TEXTS = st.text(alphabet="abcdef", min_size=1, max_size=2)


def texts(pairs: list[tuple[str, str]]) -> set[str]:
    return {text for pair in pairs for text in pair}


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=60), st.integers(0, 10))
def test_no_text_stands_in_two_parts_and_no_pair_is_lost(pairs: list[tuple[str, str]], held_out: int) -> None:
    parts = split(pairs, held_out)
    assert not texts(parts.train) & texts(parts.dev)
    assert not texts(parts.train) & texts(parts.test)
    assert not texts(parts.dev) & texts(parts.test)
    assert sorted(parts.train + parts.dev + parts.test) == sorted(set(pairs))
    assert max(len(parts.dev), len(parts.test)) <= held_out


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=40), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order(pairs: list[tuple[str, str]], random) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)
    before, after = split(pairs, 5), split(shuffled, 5)
    assert (set(before.dev), set(before.test)) == (set(after.dev), set(after.test))


def test_dev_and_test_are_filled_exactly_where_single_pairs_abound() -> None:
    connected = [("hub", f"spoke {i}") for i in range(30)]
    single = [(f"source {i}", f"target {i}") for i in range(970)]
    parts = split(connected + single, 100)
    assert (len(parts.train), len(parts.dev), len(parts.test)) == (800, 100, 100)
    assert sum(bool(set(connected) & set(part)) for part in (parts.train, parts.dev, parts.test)) == 1


def test_each_part_keeps_the_order_of_the_pairs() -> None:
    pairs = [(f"source {i:03}", f"target {i:03}") for i in range(200)]
    parts = split(pairs, 20)
    assert all(part == sorted(part) for part in (parts.train, parts.dev, parts.test))
    assert parts.test != pairs[:20]
