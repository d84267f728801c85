"""From two text files to a measured translation, by the real commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from endtoend.commands import options, regard


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "learned"
    result = regard("train", *options(corpus, steps=260, every=130), "--out", directory)
    assert result.returncode == 0, result.stderr.decode()
    return directory


def test_unseen_sentences_are_translated(run: Path, corpus: Path) -> None:
    source, reference = (corpus / f"test.{language}" for language in ("en", "de"))
    result = regard("translate", run / "model", stdin=source.read_bytes())
    outputs = result.stdout.decode().splitlines()
    references = reference.read_text("utf-8").splitlines()
    assert len(outputs) == 100
    right = sum(output == wanted for output, wanted in zip(outputs, references, strict=True))
    assert right >= 90, f"{right} of 100: {outputs[:3]}"


def test_the_run_directory_is_complete(run: Path) -> None:
    assert {path.name for path in (run / "model").iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "generation.json", "README.md", "shortlist.safetensors",
    }  # fmt: skip
    card = (run / "model" / "README.md").read_text("utf-8")
    scores = json.loads((run / "result.json").read_text("utf-8"))
    assert f"{scores['test']['BLEU']:.2f}" in card
    assert "nrefs:1" in card
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [record["step"] for record in records if record["kind"] == "validation"] == [130, 260]


def test_evaluate_agrees_with_the_run(run: Path, corpus: Path) -> None:
    result = regard("evaluate", run / "model", "--source", corpus / "test.en", "--reference", corpus / "test.de")
    assert result.returncode == 0, result.stderr.decode()
    bleu = json.loads((run / "result.json").read_text("utf-8"))["test"]["BLEU"]
    assert f"{bleu:.2f}" in result.stdout.decode() or f"{bleu:.1f}" in result.stdout.decode()


def test_right_translations_score_above_wrong_ones(run: Path, corpus: Path, tmp_path: Path) -> None:
    import regard as package

    translator = package.load(run)
    source = (corpus / "test.en").read_text("utf-8").splitlines()[:20]
    target = (corpus / "test.de").read_text("utf-8").splitlines()[:20]
    right, wrong = translator.score(source, target), translator.score(source, target[1:] + target[:1])
    assert all(good.log_probability > bad.log_probability for good, bad in zip(right, wrong, strict=True))


def test_bytes_are_the_same_in_any_locale(run: Path) -> None:
    text = "the big dog sees the old cat\ncafé Größe 你好\n\n".encode()
    plain = regard("translate", run, stdin=text)
    ascii_only = regard("translate", run, stdin=text, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert plain.returncode == ascii_only.returncode == 0
    assert plain.stdout == ascii_only.stdout
    assert plain.stdout.count(b"\n") == 3


def test_the_same_command_again_finds_the_run_finished(run: Path, corpus: Path) -> None:
    before = (run / "model" / "model.safetensors").read_bytes()
    result = regard("train", *options(corpus, steps=260, every=130), "--out", run)
    assert result.returncode == 0, result.stderr.decode()
    assert "going on from step 260" in result.stderr.decode()
    assert (run / "model" / "model.safetensors").read_bytes() == before


def test_another_run_does_not_overwrite(run: Path, corpus: Path) -> None:
    result = regard("train", *options(corpus, steps=260, every=130), "--model.d-model", "64", "--out", run)
    assert result.returncode == 2
    assert b"other settings of model" in result.stderr
    assert b"Traceback" not in result.stderr
