from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.alignment import align_both_ways, parse_pharaoh, pharaoh, symmetrised
from regard.data.lexicon import learn_lexicon
from regard.errors import UserError


def test_both_directions_held_together_by_hand() -> None:
    # (0, 0) is in both. (1, 1) touches it and links two free places; (1, 0) touches it, and 1 is linked by then but the
    # order is that of the places: (1, 0) comes first and takes source 1. (3, 3) touches nothing and is added last.
    forward, backward = {(0, 0), (1, 1), (3, 3)}, {(0, 0), (1, 0)}
    assert symmetrised(forward, backward) == [(0, 0), (1, 0), (1, 1), (3, 3)]


def test_a_link_beside_another_needs_a_free_place() -> None:
    # (0, 1) touches (0, 0) and (1, 1), whose places are both taken.
    assert symmetrised({(0, 0), (1, 1), (0, 1)}, {(0, 0), (1, 1)}) == [(0, 0), (1, 1)]


def test_at_last_only_what_links_two_free_places() -> None:
    # (0, 5) is far from (0, 0), whose source is taken.
    assert symmetrised({(0, 0), (0, 5)}, {(0, 0)}) == [(0, 0)]
    assert symmetrised({(0, 0)}, {(4, 4)}) == [(0, 0), (4, 4)]


links = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)))


@given(links, links)
def test_links_lie_between_what_both_and_what_either_has(forward: set, backward: set) -> None:
    found = set(symmetrised(forward, backward))
    assert forward & backward <= found <= forward | backward
    for links in (forward, backward):  # what is left out links a place that has a link
        for source, target in links - found:
            assert any(source == left or target == right for left, right in found)


def test_alignment_by_lexica() -> None:
    sources = [np.array(ids) for ids in ([0, 1], [0, 2], [3, 2])] * 5
    targets = [np.array(ids) for ids in ([0, 1], [0, 2], [3, 2])] * 5
    forward = learn_lexicon(sources, targets, 4, 4, iterations=20)
    backward = learn_lexicon(targets, sources, 4, 4, iterations=20)
    found = align_both_ways(forward, backward, [np.array([2, 0]), np.array([1])], [np.array([0, 2]), np.array([1])])
    assert found == [[(0, 1), (1, 0)], [(0, 0)]]


@given(links)
def test_pharaoh_is_read_as_it_is_written(links: set) -> None:
    read = parse_pharaoh(pharaoh(sorted(links)), "file, line 1")
    assert read.sure == read.possible == links


def test_possible_links() -> None:
    read = parse_pharaoh("0-1 2p10 ", "file, line 1")
    assert read.sure == {(0, 1)}
    assert read.possible == {(0, 1), (2, 10)}


@pytest.mark.parametrize("word", ["0", "0-", "a-1", "0-1-2", "0–1", "²-1"])
def test_what_is_no_link_is_named(word: str) -> None:
    with pytest.raises(UserError, match=f"file, line 3: '{word}' is no link"):
        parse_pharaoh(f"0-0 {word}", "file, line 3")
