"""The command line as a whole: exit statuses, one-sentence errors, and a start that imports little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.cli import VERBS, main


def status(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    out, err = capsys.readouterr()
    return exit_.value.code, out, err


def test_help_names_every_verb_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom regard.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'tokenizers', 'sacrebleu'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert all(f"│ {verb} " in result.stdout for verb in VERBS)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, regard; assert not {'torch', 'numpy', 'pydantic', 'cyclopts'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = status(capsys, verb, "--help")
    assert not code
    assert f"regard {verb}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translat"], "translate"),
        (["train"], "give a recipe, or --source and --target"),
        (["train", "missing.yaml"], "missing.yaml: cannot be read"),
        (["train", "--target", "b"], "--target needs --source beside it"),
        (["train", "--source", "a", "--target", "b", "--model.heads", "7", "--out", "x"], "heads = 7 does not divide"),
        (["train", "--source", "a", "--target", "b", "--modle.heads", "8", "--out", "x"], "modle is not a setting"),
        (["train", "--source", "a", "--target", "b", "--model.heads"], "--model.heads needs a value"),
        (["train", "--source", "nowhere.en", "--target", "b", "--out", "x"], "nowhere.en: cannot be read"),
        (["train", "--resume", "nowhere"], "nowhere: holds no run"),
        (["train", "recipe.yaml", "--resume", "nowhere"], "leave out the recipe"),
        (["inspect", "paper-huge"], "no preset 'paper-huge'"),
        (["inspect", "no/such/model"], "no/such/model: does not exist"),
        (["translate", "nowhere", "text"], "nowhere: does not exist"),
        (["translate", "nowhere", "--beam", "many"], "--beam"),
        (
            ["data", "clean", "--source", "a", "--out", "b", "--max-ratio", "0.5"],
            "--max-ratio: input should be greater",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_status_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = status(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("regard: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_show_prints_settings_that_can_be_given_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = [
        "--data.train.source",
        "/a",
        "--data.train.target",
        "/b",
        "--preset",
        "paper-E",
        "--training.steps",
        "77",
    ]
    code, out, _ = status(capsys, "train", *options, "--show")
    assert not code
    assert "positions: learned" in out
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(out, encoding="utf-8")
    code, again, _ = status(capsys, "train", str(recipe), "--show")
    assert again == out
    assert "steps: 77" in again


def test_what_follows_a_divergence_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["train", "--data.train.source", "/a", "--data.train.target", "/b", "--preset", "tiny", "--show"]
    code, out, _ = status(capsys, *options, "--on-divergence", "lower-rate", "--training.precision", "float16")
    assert not code
    assert "  on_divergence: lower-rate\n" in out
    assert "  precision: float16\n" in out
    code, out, _ = status(capsys, *options)
    assert "  on_divergence: stop\n" in out
    code, _, err = status(capsys, *options, "--on-divergence", "hope")
    assert code == 2
    assert "lower-rate" in err


def test_inspect_compares_with_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = status(capsys, "inspect", "paper-big")
    assert "214,245,376" in out
    assert "The paper prints 213 million; here 214.2 million." in out


SHELL = f"exec {sys.executable} -m regard"


def shell(words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sh", "-c", f"{SHELL} {words}"], capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize("verb", ["inspect tiny", "--help", "--version"])
def test_output_that_cannot_be_written_is_one_sentence(verb: str) -> None:
    result = shell(f"{verb} > /dev/full")
    assert result.returncode == 1
    assert result.stderr.decode() == "regard: standard output: No space left on device\n"


@pytest.mark.parametrize("verb", ["inspect tiny", "--help"])
def test_a_reader_that_is_gone_is_no_failure(verb: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "regard", *verb.split()]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str) -> None:
    result = shell(f"inspect tiny {closed}")
    assert (result.returncode, result.stderr) == (0, b"")
    assert (b"parameters" in result.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_too_little_memory_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        torch.empty(2**60, dtype=torch.int8)

    monkeypatch.setattr("regard.model.store.blueprint", fail)
    code, _, err = status(capsys, "inspect", "tiny")
    assert code == 1
    assert err == "regard: out of memory; a smaller model or smaller batches need less\n"
