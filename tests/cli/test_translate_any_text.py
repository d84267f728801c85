"""`regard translate` with long and odd lines, on a small untrained model."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.model.settings import ModelSettings
from regard.model.store import Languages
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SENTENCES = ["A small dog runs.", "Two men talk about tea!", "Why?"]


@pytest.fixture(scope="module")
def translator() -> Translator:
    """Its outputs are junk, but each text has its own."""
    tokenizer = Tokenizer.learn(SENTENCES * 3, TokenizerSettings(size=300))
    torch.manual_seed(0)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, max_length=32)
    model = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    pair = TokenizerPair(tokenizer, tokenizer)
    return Translator(model, pair, SearchSettings(extra_tokens=2), languages=Languages(source="en", target="de"))


@pytest.fixture(scope="module")
def model(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_directory(directory, translator, "# A card\n")
    return directory


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    log = logging.getLogger("regard")
    before = log.handlers, log.propagate, log.level
    yield
    log.handlers, log.propagate, log.level = before


def run(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[list[str], str]:
    with pytest.raises(SystemExit) as end:
        main([*map(str, words), "--executor", "torch"])
    out, err = capfd.readouterr()
    assert not end.value.code, err
    return out.removesuffix("\n").split("\n"), err


def test_a_line_beyond_the_model_is_translated_in_sentences(model: Path, capfd: pytest.CaptureFixture[str]):
    line = "  ".join(SENTENCES * 3)
    (found,), err = run(capfd, "translate", model, line, "--no-retry")
    parts, _ = run(capfd, "translate", model, *SENTENCES, "--no-retry")
    assert found == "  ".join(parts * 3)
    assert "the model can read" not in err


def test_never_leaves_the_end_out_with_a_warning(model: Path, capfd: pytest.CaptureFixture[str]):
    _, err = run(capfd, "translate", model, "  ".join(SENTENCES * 3), "--split", "never", "--no-retry")
    assert "text, line 1: has" in err
    assert "the rest is not translated" in err


def test_always_takes_each_sentence_by_itself(model: Path, capfd: pytest.CaptureFixture[str]):
    (found,), _ = run(capfd, "translate", model, " ".join(SENTENCES[:2]), "--split", "always", "--no-retry")
    parts, _ = run(capfd, "translate", model, *SENTENCES[:2], "--no-retry")
    assert found == " ".join(parts)
    shorter, _ = run(capfd, "translate", model, " ".join(SENTENCES[:2]), "--split-tokens", "8", "--no-retry")
    assert shorter == [found]


def test_numbers_that_come_out_wrong_stay_as_they_are(
    translator: Translator, model: Path, capfd: pytest.CaptureFixture[str]
):
    (first,) = translator.hypotheses("12345 678", retry=False)
    (found,) = translator.hypotheses("12345 678")
    assert not first.best.finished
    assert (found.best.text, found.remedy, found.trouble) == ("12345 678", "unchanged", None)
    assert run(capfd, "translate", model, "12345 678")[0] == ["12345 678"]
