"""What a translation run learns beside its model: which words stand for each other."""

from __future__ import annotations

from pathlib import Path

import regard
from regard.text.lines import read_lines
from runs.small_runs import carry_out, recipe


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
