"""A model directory as an object: what belongs together stays together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.data.shortlist import Shortlist
from regard.errors import JobError, UserError
from regard.evaluation.alignment import align
from regard.model.settings import AlignmentHead, ModelSettings
from regard.model.store import Languages
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.text.vocabulary import TokenizerSettings

SETTINGS = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, max_length=64)


def translator(text: str) -> Translator:
    tokenizer = Tokenizer.learn([text] * 5, TokenizerSettings(size=270))
    torch.manual_seed(0)
    model = EncoderDecoder(SETTINGS, tokenizer.size, tokenizer.size)
    return Translator(model, TokenizerPair(tokenizer, tokenizer), languages=Languages(source="en", target="zh-Hans"))


def test_a_directory_gives_back_what_was_written(tmp_path: Path) -> None:
    before = translator("some text to learn from")
    write_directory(tmp_path / "model", before, "# A card\n")
    after = regard.load(tmp_path / "model")
    assert after.languages == before.languages
    assert after.tokenizers.fingerprint == before.tokenizers.fingerprint
    assert after.translate(["some text"], beam=2) == before.translate(["some text"], beam=2)


def test_a_shortlist_is_written_and_read_with_the_rest(tmp_path: Path) -> None:
    before = translator("some text to learn from")
    assert before.shortlist is None
    write_directory(tmp_path / "without", before, "# A card\n")
    assert regard.load(tmp_path / "without").shortlist is None
    size = before.tokenizers.source.size
    always, offsets = np.array([2], np.int32), np.minimum(np.arange(size + 1), 1)
    before.shortlist = Shortlist(size, always, offsets, np.array([7], np.int32))
    write_directory(tmp_path / "model", before, "# A card\n")
    after = regard.load(tmp_path / "model")
    assert after.shortlist is not None
    assert after.shortlist.candidates([0, 1]).tolist() == [2, 7]


def test_where_a_model_aligns_is_kept_with_it(tmp_path: Path) -> None:
    before = translator("some text to learn from")
    write_directory(tmp_path / "without", before, "# A card\n")
    assert "alignment" not in (tmp_path / "without" / "config.json").read_text("utf-8")
    before.alignment = AlignmentHead(layer=0, head=1)
    write_directory(tmp_path / "model", before, "# A card\n")
    after = regard.load(tmp_path / "model")
    assert after.alignment == before.alignment
    pair = "some text", "text to learn"
    assert after.align(*pair) == list(align(before.model, before.tokenizers, [pair], before.alignment))
    with pytest.raises(UserError, match="2 sources and 1 targets"):
        after.align(["a", "b"], "a")
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text("utf-8").replace('"head": 1', '"head": 2'), "utf-8")
    with pytest.raises(UserError, match="alignment: the model has no such head"):
        regard.load(tmp_path / "model")


def test_another_tokenizer_of_the_same_size_is_refused(tmp_path: Path) -> None:
    one, other = translator("some text to learn from"), translator("quite other words in here")
    assert one.tokenizers.source.size == other.tokenizers.source.size
    write_directory(tmp_path / "model", one, "# A card\n")
    other.tokenizers.save(tmp_path / "model")
    with pytest.raises(UserError, match="the tokenizer is not the model's own"):
        regard.load(tmp_path / "model")


def test_a_model_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_directory(tmp_path / "model", translator("some text to learn from"), "# First\n")
    weights = (tmp_path / "model" / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.model.store.save", full)
    with pytest.raises(JobError, match="No space"):
        write_directory(tmp_path / "model", translator("quite other words in here"), "# Second\n")
    assert (tmp_path / "model" / "README.md").read_text("utf-8") == "# First\n"
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == weights
    assert regard.load(tmp_path / "model").translate("text", beam=1)
