"""What holds for every way of searching, whatever carries the model out."""

from __future__ import annotations

from random import Random

import pytest

from search.modes import CASES, EXACT, MODES, TEXTS, found, translator

every_case = pytest.mark.parametrize(("mode", "carrier"), CASES)


def same(one, other, exact: bool) -> None:
    one, other = list(one), list(other)
    if exact:
        assert one == other
        return
    for left, right in zip(one, other, strict=True):
        assert [(each.text, each.ids, each.finished) for each in left.candidates] == [
            (each.text, each.ids, each.finished) for each in right.candidates
        ]
        for name in ("score", "log_probability"):
            assert [getattr(each, name) for each in left.candidates] == pytest.approx(
                [getattr(each, name) for each in right.candidates], abs=1e-4, rel=1e-5
            )


@every_case
def test_company_changes_nothing(mode: str, carrier: str) -> None:
    """In a batch, in small ones, in another order, by two threads."""
    alone, exact, search, run = found(mode, carrier), carrier in EXACT, translator(carrier), MODES[mode]
    same(run(search, TEXTS), alone, exact)
    order = Random(0).sample(range(len(TEXTS)), len(TEXTS))
    search.workers = 2
    same(run(search, [TEXTS[place] for place in order], batch_tokens=60), [alone[place] for place in order], exact)
    search.workers = 1
