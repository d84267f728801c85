"""`regard translate --align`, run as a user runs it, on a small untrained model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import regard
from regard.cli import main
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.search.settings import SearchSettings
from regard.text.lines import read_lines, write_lines
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

LINES = ["a small dog runs", "", "two men talk about tea"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.learn(LINES * 3, TokenizerSettings(size=290))
    torch.manual_seed(0)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=2, max_length=64)
    tiny = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    search = SearchSettings(extra_tokens=2, retry=False)
    write_directory(directory, Translator(tiny, TokenizerPair(tokenizer, tokenizer), search), "# A card\n")
    return directory


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    sys.stdout.flush()
    return int(end.value.code or 0)


def expected(model: Path) -> list[str]:
    translator = regard.load(model, "cpu").use("torch")
    texts = [text.replace("\n", " ").replace("\0", "\ufffd") for text in translator.translate(LINES)]
    alignments = translator.align(LINES, translator.translate(LINES))
    assert any(alignment.links for alignment in alignments)
    return [f"{text}\t{alignment}" for text, alignment in zip(texts, alignments, strict=True)]


def test_links_stand_behind_each_translation(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("translate", model, *LINES, "--align", "--executor", "torch") == 0
    assert capfd.readouterr().out.removesuffix("\n").split("\n") == expected(model)


def test_from_file_to_file(model: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "in", LINES)
    assert run("translate", model, "-i", tmp_path / "in", "-o", tmp_path / "out", "--align", "--executor", "torch") == 0
    assert list(read_lines(tmp_path / "out")) == expected(model)


def test_one_translation_of_each_line(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("translate", model, "a", "--align", "--nbest", "2", "--beam", "2") == 2
    assert "--align goes with one translation of each line" in capfd.readouterr().err
