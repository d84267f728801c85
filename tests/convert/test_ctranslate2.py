"""CTranslate2 computes what our model computes, whatever its settings, and finds what our search finds."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from tokenizers import Tokenizer as Backend

from regard.cli import main
from regard.convert.ctranslate2 import QUANTIZATIONS, specification, to_ctranslate2, vocabulary
from regard.errors import JobError, UserError
from regard.evaluation.scoring import score
from regard.model import store
from regard.model.feed_forward import FEED_FORWARD
from regard.model.settings import ModelSettings
from regard.model.transformer import CausalDecoder, EncoderDecoder
from regard.pipelines.directory import write_directory
from regard.pipelines.translator import Translator
from regard.search.engine import translate
from regard.search.settings import SearchSettings
from regard.text.foreign import read_hub_tokenizer, write_hub_tokenizer
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

SMALL: dict[str, Any] = {
    "d_model": 16,
    "d_ff": 24,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_length": 80,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre": {"norm_placement": "pre"},
    "pre, no norm at the end": {"norm_placement": "pre", "final_norm": False, "norm": "rms"},
    "post, a norm at the end": {"final_norm": True},
    "both": {"norm_placement": "both"},
    "both, rms": {"norm_placement": "both", "norm": "rms", "kv_heads": 1},
    "rms, epsilon": {"norm": "rms", "norm_epsilon": 1e-2},
    "epsilon": {"norm_epsilon": 1e-2},
    "sinusoids": {"sinusoids": {"layout": "halves", "spacing": "inclusive", "first": 2}},
    "learned": {"positions": "learned", "source_max_length": 60, "embedding_norm": True},
    "no positions": {"positions": "none"},
    "rotary": {"positions": "rotary", "d_key": 8, "d_value": 8, "rotary": {"base": 500.0}},
    "rotary, interleaved": {"positions": "rotary", "rotary": {"layout": "interleaved"}, "kv_heads": 2},
    "rotary, in part": {"positions": "rotary", "d_key": 8, "d_value": 8, "rotary": {"fraction": 0.5}},
    "rotary, linear": {"positions": "rotary", "rotary": {"scaling": {"kind": "linear", "factor": 3.0}}},
    "rotary, ntk": {"positions": "rotary", "rotary": {"scaling": {"kind": "ntk", "factor": 3.0}}},
    "buckets": {"positions": "t5", "buckets": {"count": 8, "max_distance": 20}},
    "few heads": {"kv_heads": 2},
    "one head": {"kv_heads": 1},
    "d_key": {"d_key": 6, "d_value": 6, "attention_scale": 0.3},
    "embedding scale": {"embedding_scale": 2.5},
    "tie none": {"tie": "none", "output_bias": True},
    "tie decoder": {"tie": "decoder", "encoder_layers": 1},
    "tie inputs": {"tie": "inputs", "embedding_scale": 1.0},
    "no biases": {"attention_bias": "none", "feed_forward_bias": False},
    "biases inside": {"attention_bias": "in"},
    "output softcap": {"output_softcap": 2.0},
} | {kind: {"feed_forward": kind} for kind in FEED_FORWARD}

SOURCES = ["one two three four", "four", "two two one zebra three three", "one " * 15]
TARGETS = ["three four two", "one one", "q", "two three " * 10]


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    tokenizer = Tokenizer.learn(["one two three", "two three four"] * 3, TokenizerSettings(size=274))
    return TokenizerPair(tokenizer, tokenizer)


def build(tokenizers: TokenizerPair, end: float | None = None, **changes: Any) -> EncoderDecoder:
    """A random model; with `end`, that is added to the scores of the end, and what a search bans is never likely."""
    torch.manual_seed(0)
    settings = ModelSettings.parse(SMALL | changes | ({} if end is None else {"output_bias": True}), "test")
    model = EncoderDecoder(settings, tokenizers.source.size, tokenizers.target.size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        if end is not None and model.output_bias is not None:
            model.output_bias[list(tokenizers.target.forbidden)] = -50.0
            model.output_bias[tokenizers.target_end] += end
    return model


def load(model: EncoderDecoder, tokenizers: TokenizerPair, folder: Path, quantization: str | None = None) -> Any:
    write_directory(folder / "ours", Translator(model, tokenizers, SearchSettings(beam=1)), "# A card\n")
    to_ctranslate2(folder / "ours", folder / "theirs", quantization=quantization)
    return ctranslate2.Translator(str(folder / "theirs"), intra_threads=1)


def words(tokenizer: Tokenizer, texts: list[str]) -> list[list[str]]:
    names = vocabulary(tokenizer)
    return [[names[number] for number in row] for row in tokenizer.encode(texts)]


def search(theirs: Any, tokenizers: TokenizerPair, source: list[str], **options: Any) -> list[tuple[list[int], float]]:
    """What a search of theirs finds for one source, ranked as ours without a length penalty."""
    names = vocabulary(tokenizers.target)
    (result,) = theirs.translate_batch([source], length_penalty=0, return_scores=True, **options)
    return [
        ([names.index(word) for word in found], value)
        for found, value in zip(result.hypotheses, result.scores, strict=True)
    ]


@pytest.mark.parametrize("name", VARIANTS)
def test_it_computes_and_finds_the_same(tokenizers: TokenizerPair, tmp_path: Path, name: str) -> None:
    model = build(tokenizers, **VARIANTS[name])
    theirs = load(model, tokenizers, tmp_path)
    sources = words(tokenizers.source, SOURCES)

    scored = theirs.score_batch(sources, words(tokenizers.target, TARGETS))
    expected = score(model, tokenizers, zip(SOURCES, TARGETS, strict=True))
    for pair, result in zip(expected, scored, strict=True):
        assert len(result.log_probs) == pair.tokens
        assert sum(result.log_probs) == pytest.approx(pair.log_probability, abs=1e-4)

    names = vocabulary(tokenizers.target)
    bans = {"suppress_sequences": [[names[number]] for number in tokenizers.target.forbidden]}
    greedy = SearchSettings(beam=1, extra_tokens=12)
    for source, found in zip(sources, translate(model, tokenizers, SOURCES, greedy), strict=True):
        options = {"beam_size": 1, "max_decoding_length": len(source) + 12} | bans
        ((ids, _),) = search(theirs, tokenizers, source, **options)
        assert ids == list(found.best.ids)


@pytest.mark.parametrize("beam", [2, 5])
def test_a_beam_in_which_nothing_ends_finds_the_same(tokenizers: TokenizerPair, tmp_path: Path, beam: int) -> None:
    """Once something has, theirs goes on with as many hypotheses, and ours with one less."""
    model = build(tokenizers, end=-50.0)
    theirs = load(model, tokenizers, tmp_path)
    settings = SearchSettings(beam=beam, nbest=beam, alpha=0.0, extra_tokens=12)
    found = translate(model, tokenizers, SOURCES, settings)
    for source, translation in zip(words(tokenizers.source, SOURCES), found, strict=True):
        hypotheses = search(
            theirs, tokenizers, source, beam_size=beam, num_hypotheses=beam, max_decoding_length=len(source) + 12
        )
        assert [ids for ids, _ in hypotheses] == [list(each.ids) for each in translation.candidates]
        expected = [each.log_probability for each in translation.candidates]
        assert [value for _, value in hypotheses] == pytest.approx(expected, abs=1e-3)


def test_an_output_ends_where_ours_does(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    model = build(tokenizers, end=1.0)
    theirs = load(model, tokenizers, tmp_path)
    found = list(translate(model, tokenizers, SOURCES, SearchSettings(beam=1)))
    assert {len(translation.best.ids) for translation in found if translation.best.finished} == {0, 4}
    for source, translation in zip(words(tokenizers.source, SOURCES), found, strict=True):
        options = {"beam_size": 1, "min_decoding_length": 0, "max_decoding_length": len(source) + 50}
        ((ids, value),) = search(theirs, tokenizers, source, **options)
        assert ids == list(translation.best.ids)
        assert value == pytest.approx(translation.best.log_probability, abs=1e-3)


@pytest.mark.parametrize("joint", [True, False])
def test_the_code_of_its_card_translates(tmp_path: Path, capsys: pytest.CaptureFixture[str], joint: bool) -> None:
    source = Tokenizer.learn(["one two three"] * 3, TokenizerSettings(size=270))
    other = Tokenizer.learn(["vier fünf, sechs <s>"] * 3, TokenizerSettings(size=274))
    tokenizers = TokenizerPair(source, source if joint else other)
    model = build(tokenizers, end=0.0, tie="decoder")
    load(model, tokenizers, tmp_path)
    names = {path.name for path in (tmp_path / "theirs").iterdir()}
    expected = ["", ".source", ".target"][: 1 if joint else 3][-2:]
    assert {f"tokenizer{name}.json" for name in expected} < names
    assert ("shared_vocabulary.json" in names) == joint

    (code,) = re.findall("```python\n(.*?)```", (tmp_path / "theirs" / "README.md").read_text("utf-8"), re.DOTALL)
    exec(code.replace("path/of/this/directory", str(tmp_path / "theirs")), {})
    (found,) = translate(model, tokenizers, ["One sentence."], SearchSettings(beam=1))
    assert found.best.text
    assert capsys.readouterr().out == found.best.text + "\n"


def test_what_stands_around_texts_goes_along(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    learned = Tokenizer.learn(["one two three", "two three four"] * 3, TokenizerSettings(size=274))
    write_hub_tokenizer(hub, TokenizerPair(learned, learned))
    (hub / "config.json").write_text(
        json.dumps({"model_type": "bart", "decoder_start_token_id": 2, "forced_bos_token_id": 1})
    )
    tokenizers = read_hub_tokenizer(hub)
    assert tokenizers.target_begin == (2, 1)
    names = vocabulary(tokenizers.target)
    assert len(set(names)) == len(names) == tokenizers.target.size
    model = build(tokenizers)
    theirs = load(model, tokenizers, tmp_path)
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert [names.index(config[f"{name}_token"]) for name in ("decoder_start", "eos", "unk")] == [2, 2, 3]
    assert (config["add_source_bos"], config["add_source_eos"]) == (bool(tokenizers.source_begin), True)
    assert f"begins with ['{names[1]}']" in (tmp_path / "theirs" / "README.md").read_text("utf-8")

    (pair,) = score(model, tokenizers, [(SOURCES[0], TARGETS[0])])
    (target,) = words(tokenizers.target, TARGETS[:1])
    (result,) = theirs.score_batch(words(tokenizers.source, SOURCES[:1]), [[names[1], *target]], offset=1)
    assert sum(result.log_probs) == pytest.approx(pair.log_probability, abs=1e-4)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_weights_may_be_stored_smaller(tokenizers: TokenizerPair, tmp_path: Path, quantization: str) -> None:
    model = build(tokenizers, d_model=64, d_ff=256)
    theirs = load(model, tokenizers, tmp_path, quantization)
    whole = sum(parameter.nbytes for parameter in model.parameters())
    size = (tmp_path / "theirs" / "model.bin").stat().st_size - 2 * 80 * 64 * 4  # the sinusoids, too
    share = {"8": 0.25, "6": 0.5, "2": 1.0}[
        re.findall(r"\d", quantization)[0] if "int8" in quantization else quantization[-1]
    ]
    assert size / whole == pytest.approx(share, rel=0.2)
    (pair,) = score(model, tokenizers, [(SOURCES[0], TARGETS[0])])
    (result,) = theirs.score_batch(words(tokenizers.source, SOURCES[:1]), words(tokenizers.target, TARGETS[:1]))
    assert sum(result.log_probs) == pytest.approx(pair.log_probability, rel=0.05)


def test_the_model_stays_as_it_is(tokenizers: TokenizerPair) -> None:
    model = build(tokenizers)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    spec = specification(model, tokenizers)
    spec.validate()
    spec.optimize("int8")
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "alibi", "attention_softcap": 5.0}, "positions = alibi, attention_softcap = 5.0"),
        ({"qk_norm": True}, "qk_norm = True"),
        ({"segments": 2}, "segments = 2"),
        ({"d_key": 4, "d_value": 8}, "d_value = 8"),
        ({"encoder_layers": 0}, "encoder_layers = 0"),
        ({"decoder_layers": 0}, "decoder_layers = 0"),
        ({"spans": ["full", "window"], "window": 4}, "spans = full, window"),
        (
            {"positions": "rotary", "rotary": {"scaling": {"kind": "yarn", "factor": 2.0, "original_length": 40}}},
            "rotary.scaling.kind = yarn",
        ),
    ],
)
def test_what_it_cannot_compute_is_refused_by_name(
    tokenizers: TokenizerPair, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"^CTranslate2 computes no model with {re.escape(message)}$"):
        specification(build(tokenizers, **changes), tokenizers)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["convert", *map(str, arguments), "--to", "ctranslate2"])
    return stop.value.code, *capsys.readouterr()


@pytest.fixture
def ours(tokenizers: TokenizerPair, tmp_path: Path) -> Path:
    write_directory(tmp_path / "run" / "model", Translator(build(tokenizers), tokenizers), "# A card\n")
    return tmp_path / "run"


def test_the_command_writes_a_whole_directory_in_the_place_of_a_model_only(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(capsys, ours, out, "--quantization", "int8") == (0, f"{out}: a model for CTranslate2, in int8\n", "")
    assert run(capsys, ours, out) == (0, f"{out}: a model for CTranslate2, in float32\n", "")
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "model.bin",
        "shared_vocabulary.json",
        "tokenizer.json",
    ]
    assert Backend.from_file(str(out / "tokenizer.json")).get_vocab_size() == 274
    (out / "thesis.txt").write_text("years of work")
    status, _, err = run(capsys, ours, out)
    assert status == 2
    assert "is not only a model (it holds thesis.txt)" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    ours: Path, tokenizers: TokenizerPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.write(tmp_path / "decoder", CausalDecoder(ModelSettings.parse(SMALL, "test"), tokenizers.source.size))
    tokenizers.save(tmp_path / "decoder")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text('{"model_type": "marian"}')
    before = sorted(tmp_path.rglob("*"))
    out = tmp_path / "out"
    for arguments, message in (
        ((ours, ours / "model"), "is the model that is read"),
        ((ours, out, "--quantization", "int7"), "quantization int7: is not known; known are int8, "),
        ((ours, out, "--architecture", "bart"), "--architecture and --no-tokenizer go with models of transformers"),
        ((ours, out, "--no-tokenizer"), "--architecture and --no-tokenizer go with models of transformers"),
        ((tmp_path / "decoder", out), "is of the family causal-decoder; CTranslate2 gets encoder-decoders only"),
        ((tmp_path / "foreign", out), "is a model of transformers; make it one of ours first"),
        ((tmp_path / "nowhere", out), "nowhere: does not exist"),
    ):
        status, _, err = run(capsys, *arguments)
        assert status == 2, arguments
        assert message in err
        assert len(err.splitlines()) == 1
    with pytest.raises(SystemExit):
        main(["convert", str(ours), str(out), "--quantization", "int8"])
    assert "--quantization goes with --to ctranslate2 only" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_what_was_there(ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_ctranslate2(ours, tmp_path / "out")
    before = (tmp_path / "out" / "model.bin").read_bytes()

    def fail(self: object, directory: str) -> None:
        Path(directory, "model.bin").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ctranslate2.specs.TransformerSpec, "save", fail)
    with pytest.raises(JobError, match="out: cannot be written: No space left"):
        to_ctranslate2(ours, tmp_path / "out")
    assert (tmp_path / "out" / "model.bin").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


@pytest.mark.parametrize("absent", [True, False])
def test_without_the_package_one_is_told_what_to_install(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, absent: bool
) -> None:
    monkeypatch.delitem(sys.modules, "regard.convert.ctranslate2")
    if absent:
        monkeypatch.setitem(sys.modules, "ctranslate2", None)
    else:
        monkeypatch.setattr(ctranslate2, "__version__", "4.7.2")
    status, _, err = run(capsys, ours, tmp_path / "out")
    assert status == 2
    assert "4.8 or newer: pip install 'regard[ctranslate2]'" in err
    assert not (tmp_path / "out").exists()
