"""`regard convert`: both ways by content, refusals, and what the directories hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard.cli import main
from regard.convert import huggingface
from regard.convert.mapping import Ids
from regard.model import store
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder

SMALL = {
    "d_model": 8,
    "d_ff": 12,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "sinusoids": {"layout": "halves"},
    "embedding_scale": 1.0,
    "max_length": 20,
}


def build(**changes: object) -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(ModelSettings.parse(SMALL | changes, "test"), 11, 11).eval()


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    store.write(tmp_path / "ours", build())
    return tmp_path / "ours"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    huggingface.write(tmp_path / "theirs", build(output_bias=True), Ids(pad=0, bos=1, eos=2, start=1))
    return tmp_path / "theirs"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["convert", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_ours_become_theirs_and_theirs_ours(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, ours, tmp_path / "theirs")
    assert (status, err) == (0, "")
    assert "marian for transformers" in out
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["model_type"] == "marian"
    assert config["architectures"] == ["MarianMTModel"]

    status, _, err = run(capsys, tmp_path / "theirs", tmp_path / "again", "--no-tokenizer")
    assert (status, err) == (0, "")
    before, after = store.read(ours), store.read(tmp_path / "again")
    assert torch.equal(before.output, after.output)
    assert torch.equal(after.output_bias, torch.zeros(11))


def test_the_way_to_search_goes_along(theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (theirs / "generation_config.json").write_text(json.dumps({"num_beams": 6, "length_penalty": 0.8}))
    assert run(capsys, theirs, tmp_path / "ours", "--no-tokenizer")[0] == 0
    search = json.loads((tmp_path / "ours" / "generation.json").read_text())
    assert (search["beam"], search["alpha"]) == (6, 0.8)
    assert run(capsys, tmp_path / "ours", tmp_path / "back")[0] == 0
    back = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert (back["num_beams"], back["length_penalty"]) == (6, 0.8)


def test_the_precision_may_be_kept(theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = build(output_bias=True).half()
    huggingface.write(theirs, half, Ids(pad=0, eos=2, start=1))
    for option, dtype in (("keep", torch.float16), ("float32", torch.float32)):
        assert run(capsys, theirs, tmp_path / option, "--no-tokenizer", "--dtype", option)[0] == 0
        stored = store.read_tensors(tmp_path / option / store.WEIGHTS)
        assert {tensor.dtype for tensor in stored.values()} == {dtype}


def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    ours: Path, theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in (
        ((), "FROM TO: needs"),
        ((tmp_path / "nowhere", tmp_path / "out"), "nowhere: does not exist"),
        ((tmp_path / "thesis", tmp_path / "out"), "thesis: is not a model directory"),
        ((ours, ours), "is the model that is read"),
        ((ours, tmp_path / "thesis"), "is not only a model (it holds thesis.txt)"),
        ((theirs, tmp_path / "thesis", "--no-tokenizer"), "is not only a model (it holds thesis.txt)"),
        ((ours, tmp_path / "out", "--to", "regard"), "is a model of regard already"),
        ((theirs, tmp_path / "out", "--to", "huggingface"), "is a model of transformers already"),
        ((ours, tmp_path / "out", "--architecture", "t5"), "can't be written as t5"),
        ((ours, tmp_path / "out", "--architecture", "t4"), "architecture t4: is not known"),
    ):
        status, _, err = run(capsys, *arguments)
        assert status == 2, arguments
        assert message in err
        assert len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_pickle_is_refused(theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (theirs / "model.safetensors").rename(theirs / "pytorch_model.bin")
    status, _, err = run(capsys, theirs, tmp_path / "out")
    assert status == 2
    assert "save_pretrained" in err
    assert not (tmp_path / "out").exists()


def test_the_architectures_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--list")
    assert status == 0
    assert all(name in out for name in ("marian", "m2m_100", "whisper", "llama", "roberta"))
