"""Libraries for other kinds of CPU compute what this one's does; none is missing where it can be built."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from native.built import built, libraries
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.native import library
from regard.search import compiled


def test_where_there_is_a_compiler_there_is_a_library():
    """A build that fails is no error, so that it would go unnoticed here, and with it all tests that need it."""
    if sys.platform == "linux" and shutil.which("g++"):
        assert library.library() is not None
        assert built("_plain") is not None


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("feed_forward", ["relu", "swiglu", "gelu"])
def test_all_kinds_give_the_same(monkeypatch: pytest.MonkeyPatch, precision, feed_forward):
    torch.manual_seed(0)
    settings = ModelSettings(
        d_model=40, d_ff=72, heads=2, encoder_layers=1, decoder_layers=1, feed_forward=feed_forward
    )
    model = EncoderDecoder(settings, 70, 70).eval()
    logits = []
    for loaded in libraries().values():
        monkeypatch.setattr(compiled, "library", lambda loaded=loaded: loaded)
        each = compiled.NativeDecoder(compiled.PackedModel(model, precision))
        each.read([[5, 6, 7], list(range(30))])
        each.step(torch.tensor([1, 2]))
        logits.append(each.step(torch.tensor([3, 4])))
    for other in logits[1:]:
        # One rounding of a row to bytes may fall the other way.
        torch.testing.assert_close(other, logits[0], atol=1e-4 if precision == "float32" else 0.03, rtol=1e-3)


@pytest.mark.parametrize("kind", libraries())
def test_a_kind_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, kind):
    """And with another word the best one is taken, as without any."""
    best = next(iter(libraries()))
    for asked, expected in ((kind.strip("_"), kind), ("0", None), ("yes", best), ("", best)):
        library.library.cache_clear()
        monkeypatch.setenv("REGARD_NATIVE", asked)
        assert library.kind() == ("none" if expected is None else expected.strip("_"))
    monkeypatch.undo()
    library.library.cache_clear()


def test_a_source_distribution_has_every_header():
    """One that is not named is left out of it, and what is installed from there has no library, without a word."""
    root = Path(__file__).parents[2]
    extensions = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "ext-modules"
    ]
    headers = {str(path.relative_to(root)) for path in (root / "src/regard/native").glob("*.h")}
    assert {extension["name"].rpartition(".")[2] for extension in extensions} == set(library.KINDS)
    assert all(set(extension["depends"]) == headers for extension in extensions)
