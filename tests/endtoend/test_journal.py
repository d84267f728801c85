"""A translation of a file that is killed goes on, and writes the bytes that it would have written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from endtoend.commands import regard
from endtoend.conftest import sentences
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.pipelines.journal import journal_of
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SAVED = 40_000
"""Bytes that the journal grows by at least when a window is saved."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.learn([source for source, _ in sentences()[:200]], TokenizerSettings(size=320))
    torch.manual_seed(0)
    settings = ModelSettings(d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1, max_length=64)
    untrained = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    translator = Translator(
        untrained, TokenizerPair(tokenizer, tokenizer), SearchSettings(beam=2, extra_tokens=2, retry=False)
    )
    write_directory(directory, translator, "# A card\n")
    return directory


def killed(command: list[str | Path], output: Path) -> None:
    """Start a command, and kill it when it has saved something."""
    path = journal_of(output)
    before = path.stat().st_size if path.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *map(str, command)],
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not path.exists() or path.stat().st_size < before + SAVED:
        assert process.poll() is None, "ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_killed_twice_it_writes_the_same_bytes(model: Path, tmp_path: Path) -> None:
    """By PyTorch, where what is translated together rounds each other's numbers, which --nbest shows."""
    options = ["--nbest", "2", "--executor", "torch"]
    source, whole, output = tmp_path / "source", tmp_path / "whole", tmp_path / "output"
    lines = [source for source, _ in sentences()[:2900]]
    lines[1::9] = lines[::9]  # some stand there again
    source.write_text("\n".join(lines), encoding="utf-8", newline="\n")
    result = regard("translate", model, "--input", source, "--output", whole, *options)
    assert result.returncode == 0, result.stderr.decode()
    command = ["translate", model, "--input", source, "--output", output, *options]
    for _ in range(2):
        killed(command, output)
        assert not output.exists()
    result = regard(*command)
    assert result.returncode == 0, result.stderr.decode()
    assert b"going on at line " in result.stderr
    assert b"going on at line 1 " not in result.stderr
    assert output.read_bytes() == whole.read_bytes()
    numbers = [int(line.split(b"\t")[0]) for line in output.read_bytes().splitlines()]
    assert list(dict.fromkeys(numbers)) == list(range(1, len(lines) + 1))
    assert len(numbers) > 1.5 * len(lines)  # the second best is left out where its text is the first one's
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source", "whole"]
