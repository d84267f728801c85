"""What holds for every way of searching, whatever carries the model out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.shortlist import Shortlist
from regard.pipelines import Translator
from regard.search.beam import length_penalty
from regard.search.executors import pad
from regard.search.trouble import Mended
from search.modes import (
    ALONE,
    CARRIERS,
    END,
    EXACT,
    EXTRA,
    FEW,
    MARK,
    MODES,
    NEVER,
    PARTS,
    SEARCHES,
    TEXTS,
    TOKENIZER,
    TOKENIZERS,
    WORDS,
    A,
    B,
    Mode,
    cases,
    constant,
    drawing,
    found,
    translator,
)

every_case = pytest.mark.parametrize(("mode", "carrier"), cases("float32", MODES, FEW))
whole_texts = [mode for mode in MODES if "split" not in mode]
every_case_of_whole_texts = pytest.mark.parametrize(("mode", "carrier"), cases("float32", whole_texts, FEW))
every_search = pytest.mark.parametrize(
    ("mode", "carrier"), cases("torch", [*SEARCHES, *ALONE], ("greedy", "beam", "drawn"))
)
every_carrier = pytest.mark.parametrize("carrier", CARRIERS)
CLOSE: dict[str, float] = {"abs": 1e-4, "rel": 1e-5}


def assert_same(some: Iterable[Mended], others: Iterable[Mended], exact: bool = False, **close: float) -> None:
    if exact:
        assert list(some) == list(others)
        return
    for one, other in zip(some, others, strict=True):
        assert [(each.text, each.ids, each.finished) for each in one.candidates] == [
            (each.text, each.ids, each.finished) for each in other.candidates
        ]
        for name in ("score", "log_probability"):
            assert [getattr(each, name) for each in one.candidates] == pytest.approx(
                [getattr(each, name) for each in other.candidates], **(close or CLOSE)
            )


@every_case
def test_company_changes_nothing(mode: str, carrier: str) -> None:
    """In one batch, in small ones, in another order, by two threads. Outputs come in the order of their inputs."""
    alone, exact, search, run = found(mode, carrier), carrier in EXACT, translator(carrier), MODES[mode]
    assert_same(run(search, TEXTS), alone, exact)
    order = Random(0).sample(range(len(TEXTS)), len(TEXTS))
    search.workers = 2
    again = run(search, [TEXTS[place] for place in order], batch_tokens=60)
    search.workers = 1
    assert_same(again, [alone[place] for place in order], exact)


@pytest.mark.parametrize("mode", [*FEW, "beam, all rules"])
@pytest.mark.parametrize("carrier", [each for each in ("invariant", "float32") if each in CARRIERS])
def test_what_carries_a_model_out_changes_nothing(mode: str, carrier: str) -> None:
    assert_same(found(mode, carrier), found(mode, "torch"), abs=1e-3)


def log_probabilities(
    search: Translator, text: str, outputs: Sequence[tuple[int, ...]], shortlist: Shortlist | None
) -> list[float]:
    """Of each output, with its end if it has one: by whole passes, but by the steps of an executor that has bytes."""
    source, pad_id = [*TOKENIZER.encode([text])[0], END], TOKENIZER.pad
    said_BT, _ = pad([[*TOKENIZERS.target_begin, *ids] for ids in outputs], pad_id)
    with torch.inference_mode():
        if "int8" in search.executor.about:
            decoder = search.executor.begin([source] * len(outputs), pad_id, ())
            logits_EBTV = torch.stack([decoder.step(token_B) for token_B in said_BT.T], dim=1)[None]
        else:
            source_BS, real_BS = pad([source] * len(outputs), pad_id)
            models = [search.model, *(other.model for other in search.others)]
            logits_EBTV = torch.stack([model.logits(model(source_BS, real_BS, said_BT)) for model in models])
    if shortlist is not None:
        listed = torch.from_numpy(shortlist.candidates(source)).long()
        logits_EBTV = torch.full_like(logits_EBTV, -math.inf).index_copy(3, listed, logits_EBTV[..., listed])
    table_BTV = logits_EBTV.double().softmax(dim=-1).mean(dim=0).log()
    return [
        sum(float(table_BTV[row, place, token]) for place, token in enumerate(ids)) for row, ids in enumerate(outputs)
    ]


def shortlist_of(mode: str, carrier: str) -> Shortlist | None:
    """What a search has in use: none where all scores are asked for."""
    options = {*MODES[mode].options}
    return translator(carrier).shortlist if options.isdisjoint({"sampling", "groups", "no_repeat"}) else None


@every_case_of_whole_texts
def test_log_probabilities_are_those_of_the_model(mode: str, carrier: str) -> None:
    for text, translation in zip(TEXTS, found(mode, carrier), strict=True):
        if translation.remedy is not None:  # another search, with other rules
            continue
        outputs = [(*each.ids, *[END] * each.finished) for each in translation.candidates]
        expected = log_probabilities(translator(carrier), text, outputs, shortlist_of(mode, carrier))
        assert [each.log_probability for each in translation.candidates] == pytest.approx(expected, abs=1e-3)


@every_case
def test_candidates_are_ranked_and_different(mode: str, carrier: str) -> None:
    run = MODES[mode]
    alpha = run.options.get("alpha", 0.6)
    for translation in found(mode, carrier):
        candidates = translation.candidates
        texts = [each.text for each in candidates]
        assert 1 <= len(texts) <= run.nbest
        assert texts == [text.strip() for text in texts]
        if not run.beam and "mbr" not in run.options:
            assert len(texts) == run.nbest
        else:
            assert len({*texts}) == len(texts)
        if "mbr" not in run.options and "retry" not in run.options:
            ranks = [(each.finished, each.score) for each in candidates]
            assert ranks == sorted(ranks, reverse=True)
        if "coverage" not in run.options and "split" not in run.options:
            for each in candidates:
                penalty = length_penalty(len(each.ids) + each.finished, alpha)
                assert each.score == pytest.approx(each.log_probability / penalty)


@every_case_of_whole_texts
def test_limits_and_rules_are_kept(mode: str, carrier: str) -> None:
    run = MODES[mode]
    for text, translation in zip(TEXTS, found(mode, carrier), strict=True):
        tokens, options, wishes = len(TOKENIZER.encode([text])[0]), run.options, run.wished(text)
        most = min(tokens + EXTRA, math.ceil(options.get("max_ratio", 99) * tokens) + 1)
        if "must" not in wishes and "prefix" not in wishes:
            assert all(len(each.ids) + each.finished <= most for each in translation.candidates)
            assert all(len(each.ids) == most for each in translation.candidates if not each.finished)
        least = max(options.get("min_tokens", 0), math.ceil(options.get("min_ratio", 0) * tokens))
        for each in translation.candidates:
            assert {*each.ids} <= {*WORDS, *TOKENIZER.encode(["c"])[0]}
            assert len(each.ids) >= least or not each.finished
            size = options.get("no_repeat", 99)
            runs = [each.ids[place : place + size] for place in range(len(each.ids) - size + 1)]
            assert len({*runs}) == len(runs)
            assert each.text.startswith(wishes.get("prefix", ""))
            for phrase in (*options.get("forbid", ()), *wishes.get("forbid", ())):
                assert not re.search(rf"\b{phrase}\b", each.text)
            for ways in wishes.get("must", ()) if each.finished else ():
                assert any(re.search(rf"\b{way}\b", each.text) for way in ([ways] if isinstance(ways, str) else ways))


@pytest.mark.parametrize("search", SEARCHES)
def test_a_text_of_several_sentences_is_what_its_sentences_are(search: str) -> None:
    """Draws of all sentences make a draw of the text, and the least risk of each the least risk of all."""
    run = MODES[f"{search}, split"]
    (whole,) = run(translator("torch"), [" ".join(PARTS)])
    parts = run(translator("torch"), PARTS)
    total = sum(part.best.log_probability for part in parts)
    if "sampling" not in run.options or "mbr" in run.options:
        assert whole.best.text == " ".join(part.best.text for part in parts if part.best.text)
        assert whole.best.log_probability == pytest.approx(total, abs=1e-3)
        return
    assert len(whole.candidates) == run.nbest
    drawn = [[each.log_probability for each in part.candidates] for part in parts]
    sums = sum(map(sum, drawn))
    assert sum(each.log_probability for each in whole.candidates) == pytest.approx(sums, abs=1e-3)
    assert whole.best.log_probability < total - 1e-3  # not the best draws of all sentences together


@cache
def with_probabilities(carrier: str, *probabilities: tuple[int, float]) -> Translator:
    """What gives each of these tokens the same probability everywhere."""
    search = CARRIERS[carrier](constant(dict(probabilities)))
    for other in search.others:
        other.model.load_state_dict(search.model.state_dict())
    if search.others:
        search.use("native" if carrier.startswith("native") else "torch")
    return search


@every_search
def test_an_end_that_never_comes(mode: str, carrier: str) -> None:
    """Exactly as many tokens as there may be, and a mark that it is not finished."""
    search = with_probabilities(carrier, (A, 2 / 3), (B, 1 / 3))
    (translation,) = MODES[mode](search, ["a"], extra_tokens=4, retry=False)
    for each in translation.candidates:
        assert len(each.ids) == 5
        assert not each.finished
        expected = each.ids.count(A) * math.log(2 / 3) + each.ids.count(B) * math.log(1 / 3)
        assert each.log_probability == pytest.approx(expected, abs=1e-4)
    if mode in ("greedy", "beam", "no penalty", "frozen"):
        assert translation.best.text == "a a a a a"
    if mode == "no penalty":
        assert translation.best.score == pytest.approx(5 * math.log(2 / 3), abs=1e-5)


@every_search
def test_an_empty_output_is_an_answer_and_control_tokens_are_none(mode: str, carrier: str) -> None:
    (empty,) = MODES[mode](with_probabilities(carrier, (END, 1.0)), ["a"], retry=False)
    assert (empty.best.text, empty.best.ids, empty.best.finished) == ("", (), True)
    assert empty.best.log_probability == pytest.approx(0, abs=1e-5)
    unk = TOKENIZER.unk
    assert unk is not None
    favourites = ((TOKENIZER.pad, 0.3), (TOKENIZERS.target_begin[0], 0.2), (unk, 0.1), (A, 0.3), (END, 0.1))
    (translation,) = MODES[mode](with_probabilities(carrier, *favourites), ["a"], retry=False)
    share = 0.4 if shortlist_of(mode, carrier) else 1.0  # of all probability, what listed tokens have
    for each in translation.candidates:
        assert {*each.ids} <= {A}
        expected = len(each.ids) * math.log(0.3 / share) + each.finished * math.log(0.1 / share)
        assert each.log_probability == pytest.approx(expected, abs=1e-4)


@every_carrier
def test_the_scores_that_were_computed_by_hand(carrier: str) -> None:
    search = with_probabilities(carrier, (A, 0.6), (B, 0.3), (END, 0.1))
    (translation,) = Mode({"beam": 50, "nbest": 5, "alpha": 0.0})(search, ["a"])
    assert [each.text for each in translation.candidates] == ["", "a", "a a", "b", "a a a"]
    scores = [-2.3026, -2.8134, -3.3242, -3.5066, -3.8351]
    assert [each.score for each in translation.candidates] == pytest.approx(scores, abs=1e-4)
    equal = with_probabilities(carrier, (A, 0.45), (B, 0.45), (END, 0.1))
    (translation,) = Mode({"beam": 50, "nbest": 4, "alpha": 0.0})(equal, ["a"])
    assert [each.text for each in translation.candidates] == ["", "a", "b", "a a"]
    assert Mode({"beam": 1})(equal, ["a"])[0].best.text == "a a a a a"


@every_search
def test_where_nothing_is_allowed_there_is_an_empty_answer_without_an_end(mode: str, carrier: str) -> None:
    impossible = Mode(MODES[mode].options, {"prefix": "c ", "forbid": ("c",)})
    for translation in impossible(translator(carrier), TEXTS[:2]):
        assert {(each.text, each.ids, each.finished) for each in translation.candidates} == {("", (), False)}
        assert translation.best.log_probability == 0


@every_carrier
def test_a_wide_beam_is_looking_at_every_output(carrier: str) -> None:
    """With every length penalty: to stop early loses nothing. Of outputs with one text the best counts."""
    search, text = translator(carrier), "a"
    ended = [(*ids, END) for length in range(3) for ids in product(WORDS, repeat=length)]
    everything = [*ended, *product(WORDS, repeat=3)]
    totals = log_probabilities(search, text, everything, search.shortlist)
    texts = TOKENIZER.decode([[token for token in ids if token != END] for ids in everything])
    for alpha, nbest in product((-1.0, 0.0, 0.6, 3.0), (1, 6)):
        best: dict[str, tuple[bool, float]] = {}
        for ids, total, said in zip(everything, totals, texts, strict=True):
            found_so = (ids[-1] == END, total / length_penalty(len(ids), alpha))
            best[said] = max(found_so, best.get(said, found_so))
        expected = sorted(best.values(), reverse=True)[:nbest]
        (translation,) = Mode({"beam": 260, "nbest": nbest, "alpha": alpha})(search, [text], extra_tokens=2)
        assert [each.finished for each in translation.candidates] == [True] * nbest
        assert [each.score for each in translation.candidates] == pytest.approx([each for _, each in expected], **CLOSE)


@pytest.mark.parametrize("carrier", [each for each in ("torch", "float32", "int8", "shortlist") if each in CARRIERS])
def test_without_a_choice_drawing_is_greedy_search(carrier: str) -> None:
    greedy = found("greedy", "float32" if carrier == "shortlist" else carrier)  # which drawing does without
    for options in ({"temperature": 0}, {"temperature": 1e-6}, {"top_k": 1}):
        assert_same(Mode(drawing(**options))(translator(carrier), TEXTS), greedy)
    wide = Mode(drawing(n=2, top_k=10**6, temperature=1e6))(translator(carrier), TEXTS)
    assert_same(Mode(drawing(n=2, temperature=1e6))(translator(carrier), TEXTS), wide, exact=True)
    assert all(math.isfinite(each.score) for translation in wide for each in translation.candidates)


def test_one_draw_is_among_several() -> None:
    for one, several in zip(found("drawn once", "torch"), Mode(drawing(n=4))(translator("torch"), TEXTS), strict=True):
        assert one.best.ids in [each.ids for each in several.candidates]
        assert len({each.ids for each in several.candidates}) > 1


class Stub:
    """An executor of a model that ends its output after as many tokens as `steps` says of the source."""

    joins = alone = False
    about = "a stub"
    device = torch.device("cpu")

    def __init__(self, search: Translator, steps: dict[int, int]) -> None:
        self.settings, self.steps = search.executor.settings, steps
        self.rows: dict[int, int] = dict.fromkeys(steps, 0)
        """How many rows were asked for in all, of each source."""

    def begin(self, sources: Sequence[list[int]], padding: int, forced: Sequence[int]) -> Any:
        return Steps(self, [source[0] for source in sources])


class Steps:
    def __init__(self, stub: Stub, sources: list[int]) -> None:
        self.stub, self.sources, self.said = stub, sources, [0] * len(sources)

    def step(self, tokens_R: Tensor) -> Tensor:
        logits_RV = torch.full((len(self.sources), TOKENIZER.size), NEVER)
        logits_RV[:, [A, B, MARK]] = torch.tensor([1.0, 2.0, 0.0])
        for row, source in enumerate(self.sources):
            self.stub.rows[source] += 1
            if self.said[row] >= self.stub.steps[source]:
                logits_RV[row, END] = 9.0
        self.said = [count + 1 for count in self.said]
        return logits_RV

    def reorder(self, rows_R: Tensor, sources_N: Tensor | None) -> None:
        rows = rows_R.tolist()
        self.sources, self.said = [self.sources[row] for row in rows], [self.said[row] for row in rows]


@pytest.mark.parametrize("mode", [*SEARCHES, *ALONE])
def test_the_finished_neither_go_on_nor_cost_anything(mode: str) -> None:
    results, rows = [], []
    for texts in (["a"], ["b"], ["a", "b"], ["b", "a"]):
        search = Translator(translator("torch").model, TOKENIZERS).use("torch")
        stub = Stub(search, {A: 2, B: 50})
        search._chosen = stub, "as asked"
        translations = dict(zip(texts, MODES[mode](search, texts, extra_tokens=60), strict=True))
        results += list(translations.items())
        rows += [(text, stub.rows[{"a": A, "b": B}[text]]) for text in texts]
    assert len(set(rows)) == 2
    for text, translation in results:
        assert_same([translation], [dict(results[:2])[text]])
    if MODES[mode].options == {"beam": 1}:
        assert set(rows) == {("a", 3), ("b", 51)}
        assert [len(translation.best.ids) for _, translation in results[:2]] == [2, 50]
