"""What a translation run learns beside its model: which words stand for each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

import regard
from regard.data.aligned import open_links
from regard.data.dataset import PairDataset
from regard.errors import UserError
from regard.model.settings import AlignmentHead
from regard.recipes import merge
from regard.runs.tasks import resolve
from regard.text.lines import read_lines, write_lines
from regard.text.tokenizer import TokenizerPair
from runs.small_runs import Killed, carry_out, recipe


def test_a_run_leaves_a_shortlist_with_its_model(tmp_path: Path) -> None:
    said = carry_out(tmp_path / "run", recipe(tmp_path, "translation"))
    assert any(line.startswith("lexicon: ") and "nats a token" in line for line in said)
    translator = regard.load(tmp_path / "run")
    lines = [line.split("\t") for line in read_lines(tmp_path / "dev.txt")]
    sources, targets = (
        tokenizer.encode([line[side] for line in lines])
        for side, tokenizer in enumerate((translator.tokenizers.source, translator.tokenizers.target))
    )
    for source, target in zip(sources, targets, strict=True):
        assert set(target) <= set(translator.shortlist.candidates(source).tolist())


GUIDED = {"training": {"alignment": {"weight": 1.0, "head": 1}}}


def test_a_head_learns_to_align_and_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    values = merge(recipe(tmp_path, "translation"), {"training": {"replicas": 1}})
    said = carry_out(tmp_path / "whole", values, **GUIDED)
    assert sum(line.startswith("alignments: ") for line in said) == 1
    with pytest.raises(Killed):
        carry_out(tmp_path / "killed", values, kill=7, **GUIDED)
    again = carry_out(tmp_path / "killed", values, **GUIDED)
    assert any("going on from step 4" in line for line in again)
    carry_out(tmp_path / "plain", values)
    whole, killed, plain = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "killed", "plain")
    )
    assert all((whole[name] == killed[name]).all() for name in whole)
    assert any((whole[name] != plain[name]).any() for name in whole)
    assert regard.load(tmp_path / "whole").alignment == AlignmentHead(layer=0, head=1)
    assert regard.load(tmp_path / "plain").alignment is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"training": {"alignment": {"head": 2}}}, r"training.alignment.head = 2: the decoder has 2 of them"),
        ({"training": {"alignment": {"layer": 1}}}, r"training.alignment.layer = 1: the decoder has 1 of them"),
        ({"data": {"train": {"alignments": "links"}}}, "is what training.alignment learns from; set that too"),
        ({"data": {"subword_dropout": 0.1}, "training": {"alignment": {}}}, "leave out data.subword_dropout"),
    ],
)
def test_what_cannot_be_is_said_at_once(tmp_path: Path, wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(merge(recipe(tmp_path, "translation"), wrong), "recipe")


def test_a_language_model_has_nothing_to_align(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"training.alignment means nothing to the task language-model"):
        resolve(merge(recipe(tmp_path, "language-model"), {"training": {"alignment": {}}}), "recipe")


def test_alignments_of_a_file_are_those_of_the_lines_that_are_kept(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")
    lines = list(read_lines(tmp_path / "train.txt"))
    lines[1:1] = ["too much\tof it " + "and more " * 300]  # left out: its links must not go to the next line
    write_lines(tmp_path / "train.txt", lines)
    words = [len(line.split("\t")[0].split()) for line in lines]
    write_lines(tmp_path / "links", (" ".join(f"{k}-{k}" for k in range(count)) for count in words))
    changes = {"data": {"train": {"alignments": str(tmp_path / "links")}}, "training": {"alignment": {}, "steps": 2}}
    said = carry_out(tmp_path / "run", values, **changes)
    assert any(line.startswith("alignments: ") and line.endswith("from links") for line in said)
    tokenizers = TokenizerPair.load(tmp_path / "run")
    pairs = PairDataset.open(tmp_path / "run" / "data" / "train.arrow", tokenizers)
    links = open_links(tmp_path / "run" / "data" / "train.links.arrow", pairs)
    for index in range(len(pairs)):
        for side, ids in enumerate(pairs.pair(index)):
            pieces = tokenizers.source.pieces(ids.tolist())
            with_letters = {place for place, piece in enumerate(pieces) if piece != "▁"}
            assert set(links[index].reshape(-1, 2)[:, side].tolist()) == with_letters
    write_lines(tmp_path / "short", ["0-0"])
    short = merge(changes, {"data": {"train": {"alignments": str(tmp_path / "short")}}})
    with pytest.raises(UserError, match=r"short: has fewer lines than .*train.txt"):
        carry_out(tmp_path / "other", values, **short)
