"""A small untrained model that translates, as a directory, and the command line in this process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SENTENCE = "a small dog runs two men talk about tea the quick brown fox jumps over it"
WORDS = SENTENCE.split()


def write_model(directory: Path, seed: int = 0) -> Path:
    """Into a directory that is there."""
    tokenizer = Tokenizer.learn([SENTENCE] * 3, TokenizerSettings(size=300))
    torch.manual_seed(seed)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, max_length=64)
    tiny = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    translator = Translator(tiny, TokenizerPair(tokenizer, tokenizer), SearchSettings(extra_tokens=3, retry=False))
    write_directory(directory, translator, "# A card\n")
    return directory


@contextmanager
def command_line(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs commands; their exit status, standard output and standard error."""
    log = logging.getLogger("regard")
    before = log.handlers, log.propagate, log.level

    def command(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        sys.stdout.flush()
        return int(end.value.code or 0), *capfd.readouterr()

    yield command
    log.handlers, log.propagate, log.level = before
