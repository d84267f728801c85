"""The ways of searching of `regard translate`, as a user asks for them, on a small untrained model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.small_translator import command_line
from regard.errors import UserError
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

LINES = ["a small dog runs", "two men talk about tea", "a small dog runs"]

Regard = Callable[..., tuple[int, list[str], str]]


def written(directory: Path, seed: int, lines: list[str]) -> Path:
    tokenizer = Tokenizer.learn(lines * 3, TokenizerSettings(size=300))
    torch.manual_seed(seed)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, max_length=64)
    tiny = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    with torch.no_grad():
        tiny.output[4:260] *= 0.2  # words rather than bytes
    translator = Translator(tiny, TokenizerPair(tokenizer, tokenizer), SearchSettings(extra_tokens=8, retry=False))
    write_directory(directory, translator, "# A card\n")
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [written(tmp_path_factory.mktemp("model"), seed, LINES) for seed in (0, 1)]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Regard]:
    with command_line(capfd) as command:

        def translate(*words: object) -> tuple[int, list[str], str]:
            status, out, err = command("translate", *words, "--executor", "torch")
            return status, out.removesuffix("\n").split("\n"), err

        yield translate


def test_what_translations_must_be_like(run: Regard, models: list[Path]):
    wishes = ["--prefix", "two m", "--must", "dog|tea", "--must", "small", "--forbid", "talk", "--forbid", "about"]
    for way in (["--beam", 4, "--nbest", 4], ["--sample", "--seed", 1], ["--beam", 1]):
        status, lines, _ = run(models[0], *LINES, *wishes, *way)
        assert status == 0
        for line in lines:
            text = line.split("\t")[-1]
            words = re.findall(r"\w+", text)
            assert text.startswith("two m")
            assert "small" in words
            assert {"dog", "tea"} & set(words)
            assert not {"talk", "about"} & set(words)


def test_samples_are_lines_with_numbers_and_minimum_bayes_risk_takes_one(run: Regard, models: list[Path]):
    drawing = ["--samples", 4, "--seed", 1, "--top-k", 40]
    status, lines, _ = run(models[0], *LINES, *drawing)
    fields = [line.split("\t") for line in lines]
    assert status == 0
    assert [row[:2] for row in fields] == [[str(line), str(rank)] for line in (1, 2, 3) for rank in (1, 2, 3, 4)]
    texts = [{row[3] for row in fields if row[0] == str(line)} for line in (1, 2, 3)]
    assert texts[0] == texts[2] != texts[1]
    status, best, _ = run(models[0], *LINES, *drawing, "--mbr", "chrf")
    assert (status, len(best)) == (0, 3)
    assert all(text in drawn for text, drawn in zip(best, texts, strict=True))
    assert run(models[0], *LINES, *drawing, "--mbr", "chrf")[1] == best


def test_an_ensemble(run: Regard, models: list[Path], tmp_path: Path):
    expected = Translator.load(models, "cpu").use("torch").translate(LINES)
    status, lines, _ = run(models[0], *LINES, "--with", models[1])
    assert (status, lines) == (0, [text.replace("\n", " ").replace("\0", "\ufffd") for text in expected])
    assert lines != run(models[0], *LINES)[1]
    other = written(tmp_path / "other", 0, ["another vocabulary"])
    status, _, err = run(models[0], *LINES, "--with", other)
    assert (status, "model 2 of the ensemble has another vocabulary" in err) == (2, True)
    with pytest.raises(UserError, match="another vocabulary"):
        Translator.load([models[0], other], "cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top-k", 5], "--top-k says how to draw: it goes with --sample"),
        (["--must", "a||b"], "an empty text stands everywhere"),
        (["--forbid", ""], "an empty text stands everywhere"),
        (["--sample", "--temperature", -1], "temperature"),
        (["--samples", 0], "n: input should be greater than or equal to 1 (got 0)"),
        (["--groups", 3], "groups = 3 does not divide beam = 4"),
    ],
)
def test_mistakes_are_said(run: Regard, models: list[Path], options: list[object], message: str):
    status, _, err = run(models[0], *LINES, *options)
    assert status == 2
    assert message in err


def test_a_metric_that_nothing_is_chosen_by(models: list[Path]):
    metric: Any = "comet"
    with pytest.raises(UserError, match="mbr = 'comet' is not a metric to choose by; take chrf or bleu"):
        Translator.load(models[0], "cpu").translate(LINES, mbr=metric)
