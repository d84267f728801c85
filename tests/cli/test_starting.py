"""What lets a command begin sooner: no more is imported than it needs, and garbage is not looked for meanwhile."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.cli.starting import importing
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

HEAVY = {
    *("torch._dynamo", "torch._inductor", "sympy", "triton", "transformers", "tensorboard", "matplotlib", "scipy"),
    *("pandas", "sklearn", "ray", "pyarrow", "sacrebleu", "lxml", "rich", "yaml"),
    *("regard.runs", "regard.training", "regard.inspection", "regard.convert", "regard.evaluation.metrics"),
    *("regard.pipelines.classifier", "regard.pipelines.filler", "regard.pipelines.generator"),
}
"""What no translation of a sentence needs: other verbs, learning, measuring, and what torch itself loads late."""

TRANSLATE = """
import gc, sys
import torch
torchs_own = set(sys.modules)
from regard.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print(*sys.modules.keys() - torchs_own)
print(gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


@pytest.fixture
def frozen() -> Iterator[None]:
    """Whatever a test freezes is looked through again afterwards."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tokenizer = Tokenizer.learn(["a small dog runs"] * 3, TokenizerSettings(size=270))
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, max_length=64)
    torch.manual_seed(0)
    tiny = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    translator = Translator(tiny, TokenizerPair(tokenizer, tokenizer), SearchSettings(extra_tokens=2))
    write_directory(tmp_path / "model", translator, "# A card\n")
    return tmp_path / "model"


def test_a_sentence_is_translated_with_no_more_than_it_needs(model: Path) -> None:
    command = [sys.executable, "-c", TRANSLATE, "translate", str(model), "a dog", "--device", "cpu"]
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    modules, garbage = run.stdout.splitlines()[-2:]
    assert "regard.pipelines.translator" in modules.split()
    assert HEAVY & set(modules.split()) == set()
    assert garbage == "True True"  # what is made from now on is looked through, and what was imported is not


def test_garbage_is_looked_for_again_after_imports(frozen: None) -> None:
    before = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
        kept: list[list[int]] = [[]]
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    assert all(each is not kept for each in gc.get_objects())


def test_also_where_an_import_fails(frozen: None) -> None:
    with pytest.raises(ModuleNotFoundError), importing():
        raise ModuleNotFoundError
    assert gc.isenabled()


def test_who_wants_no_collections_gets_none(frozen: None) -> None:
    gc.disable()
    with importing():
        pass
    assert not gc.isenabled()
