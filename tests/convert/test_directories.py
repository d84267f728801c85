"""Whole directories: what was converted translates, and what stands beside the weights goes along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.convert import directories, huggingface
from regard.convert.directories import from_huggingface, to_huggingface
from regard.convert.generation import read_generation, write_generation
from regard.convert.mapping import Ids
from regard.errors import UserError
from regard.model import store
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines.directory import write_directory
from regard.pipelines.translator import Translator
from regard.search.settings import SearchSettings
from regard.text.foreign import read_hub_tokenizer, write_hub_tokenizer
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SETTINGS = {
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "sinusoids": {"layout": "halves"},
    "max_length": 30,
    "feed_forward": "silu",
    "output_bias": True,
}


@pytest.fixture(scope="module")
def translator() -> Translator:
    tokenizer = Tokenizer.learn(["one two three", "two three four"] * 3, TokenizerSettings(size=275))
    torch.manual_seed(0)
    model = EncoderDecoder(ModelSettings.parse(SETTINGS, "test"), tokenizer.size, tokenizer.size)
    with torch.no_grad():
        model.output_bias.normal_()
    return Translator(model, TokenizerPair(tokenizer, tokenizer), SearchSettings(beam=3, alpha=0.7))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The tokenizer of a foreign directory, as our own file; and with which arguments it was asked for."""
    asked: list[tuple[Any, ...]] = []

    def read(directory: Path, *languages: str | None) -> TokenizerPair:
        asked.append(languages)
        return TokenizerPair.load(directory)

    def write(directory: Path, tokenizers: TokenizerPair, family: str) -> None:
        asked.append((family,))
        tokenizers.save(directory)

    monkeypatch.setattr(directories, "read_hub_tokenizer", read)
    monkeypatch.setattr(directories, "write_hub_tokenizer", write)
    return asked


def test_there_and_back_it_translates_the_same(
    translator: Translator, hub: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    ours, theirs, again = tmp_path / "ours", tmp_path / "theirs", tmp_path / "again"
    write_directory(ours, translator, "# A card\n")

    assert to_huggingface(ours, theirs).name == "marian"
    from_huggingface(theirs, again, languages=store.Languages(source="en", target="de"))

    assert hub == [("encoder-decoder",), ("en", "de")]
    config = json.loads((theirs / "config.json").read_text())
    tokenizer = translator.tokenizers.target
    assert config["pad_token_id"] == tokenizer.pad
    assert config["decoder_start_token_id"] == tokenizer.bos
    search = json.loads((theirs / "generation_config.json").read_text())
    assert (search["num_beams"], search["length_penalty"], search["eos_token_id"]) == (3, 0.7, tokenizer.eos)
    back = regard.load(again, device="cpu")
    assert back.languages == store.Languages(source="en", target="de")
    assert (back.settings.beam, back.settings.alpha) == (3, 0.7)
    texts = ["one two", "four three two one", "three"]
    assert back.translate(texts) == translator.translate(texts)
    assert "marian" in (again / "README.md").read_text()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.4}, {"beam": 6, "groups": 3, "diversity": 0.4}),
        ({"no_repeat_ngram_size": 3, "min_new_tokens": 5}, {"no_repeat": 3, "min_tokens": 5}),
        ({"min_length": 8}, {"min_tokens": 7}),  # which counts the start
        ({"min_length": 8, "forced_bos_token_id": 1}, {"min_tokens": 6}),
        ({"length_penalty": -1.0, "max_length": 142}, {"alpha": -1.0}),
    ],
)
def test_rules_of_a_search_go_along(tmp_path: Path, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(json.dumps(theirs))
    settings = read_generation(tmp_path, "encoder-decoder")
    assert settings == SearchSettings.parse({"beam": 1, "alpha": 1.0} | ours, "test")
    (tmp_path / "back").mkdir()
    write_generation(tmp_path / "back", settings.model_dump(), Ids(pad=0))
    (tmp_path / "back" / "config.json").write_text("{}")
    assert read_generation(tmp_path / "back", "encoder-decoder") == (
        settings if settings.beam > 1 else settings.model_copy(update={"alpha": 1.0})
    )


@pytest.mark.parametrize("forced", [1, None])
def test_what_an_output_is_forced_to_begin_with_goes_along(tmp_path: Path, forced: int | None) -> None:
    hub, ours, theirs, again = (tmp_path / name for name in ("hub", "ours", "theirs", "again"))
    hub.mkdir()
    learned = Tokenizer.learn(["one two three", "two three four"] * 3, TokenizerSettings(size=275))
    write_hub_tokenizer(hub, TokenizerPair(learned, learned))
    config = {"model_type": "bart", "decoder_start_token_id": 2, "forced_bos_token_id": forced}
    (hub / "config.json").write_text(json.dumps(config))
    tokenizers = read_hub_tokenizer(hub)
    assert tokenizers.target_begin == ((2,) if forced is None else (2, forced))
    settings = ModelSettings.parse(SETTINGS | {"positions": "learned", "embedding_norm": True}, "test")
    torch.manual_seed(0)
    translator = Translator(EncoderDecoder(settings, learned.size, learned.size), tokenizers)
    write_directory(ours, translator, "# A card\n")

    assert to_huggingface(ours, theirs, architecture="bart").name == "bart"
    from_huggingface(theirs, again)

    assert json.loads((theirs / "generation_config.json").read_text()).get("forced_bos_token_id") == forced
    back = regard.load(again, device="cpu")
    assert back.tokenizers.target_begin == tokenizers.target_begin
    assert back.translate(["one two", "three"]) == translator.translate(["one two", "three"])


def test_a_tokenizer_of_another_size_is_refused(
    translator: Translator, hub: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    size = translator.tokenizers.target.size
    model = EncoderDecoder(ModelSettings.parse(SETTINGS, "test"), size - 1, size - 1)
    huggingface.write(tmp_path / "theirs", model, Ids(pad=0), more=translator.tokenizers.save)

    with pytest.raises(UserError, match=f"the tokenizer has {size} ids and the model {size - 1}"):
        from_huggingface(tmp_path / "theirs", tmp_path / "ours")

    assert not (tmp_path / "ours").exists()
    from_huggingface(tmp_path / "theirs", tmp_path / "ours", tokenizer=False)
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == [
        "README.md",
        "config.json",
        "generation.json",
        "model.safetensors",
    ]


def test_whoever_loads_a_foreign_directory_is_told_to_convert_it(translator: Translator, tmp_path: Path) -> None:
    huggingface.write(tmp_path / "theirs", translator.model)
    with pytest.raises(UserError, match="read by `regard convert`"):
        regard.load(tmp_path / "theirs")


def test_a_run_is_written_by_its_model(translator: Translator, hub: list[tuple[Any, ...]], tmp_path: Path) -> None:
    write_directory(tmp_path / "run" / "model", translator, "# A card\n")

    to_huggingface(tmp_path / "run", tmp_path / "theirs", architecture="marian")

    assert huggingface.is_foreign(tmp_path / "theirs")
