"""What a model says of the test text becomes one line each, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.runs import run, translation
from regard.runs.tasks import resolve
from regard.search.engine import Candidate, Translation
from regard.text.lines import write_lines
from regard.training.terminal import TerminalView


def test_a_translation_with_a_line_feed_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "pairs", (f"number {index}\tNummer {index}" for index in range(40)))

    said = ["a\nb", "c\0d"] * 20

    def translate(*inputs: Any, **options: Any) -> Iterator[Translation]:
        return (Translation((Candidate((), 0.0, 0.0, True, text),)) for text in said)

    monkeypatch.setattr(translation, "translate", translate)  # the validation text
    monkeypatch.setattr(translation.Translator, "translate", lambda *_: said)  # the test text
    files = {"source": str(tmp_path / "pairs")}
    values = {
        "data": {"train": files, "dev": files, "test": files},
        "tokenizer": {"size": 280},
        "model": {"d_model": 8, "d_ff": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
        "training": {"steps": 1, "threads": 1},
        "validation": {"every": 1, "samples": 0},
    }
    run.train(tmp_path / "run", resolve(values, "test"), TerminalView(Console(quiet=True)), lambda text: None)
    assert (tmp_path / "run" / "test.txt").read_bytes().decode() == "a b\nc\ufffdd\n" * 20
