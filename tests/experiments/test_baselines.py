"""`regard experiment baselines`, the real command on a small text."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regard.cli import main
from regard.experiments import baselines
from regard.experiments.baselines import Comparison
from regard.experiments.contenders import ContendersSettings
from regard.recipes import read_yaml
from regard.runs.tasks import resolve
from regard.training.terminal import TerminalView
from regard.training.trainer import Listening, StepReport, Trainer

Here = Callable[..., tuple[int, str]]

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
RECIPE = """
data:
  target_language: en
  max_length: 40
  train: {source: train.tsv}
  dev: {source: dev.tsv}
  test: {source: test.tsv}
model: {d_model: 16, d_ff: 24, heads: 2, encoder_layers: 1, decoder_layers: 1, dropout: 0.1, max_length: 64}
tokenizer: {size: 290}
batches: {tokens: 300}
training:
  steps: 6
  threads: 1
  schedule: {kind: linear, peak_rate: 0.01, warmup_steps: 2}
validation: {every: 3}
search: {beam: 2, extra_tokens: 4}
"""


OPTIONS = "--lstm.training.schedule.peak-rate", "0.02", "--convolution.model.decoder-layers", "2"


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "regard", "experiment", "baselines", "recipe.yaml", "--out", "out", *words],
        cwd=folder, capture_output=True, encoding="utf-8", timeout=300, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


class Clock(Listening):
    """By which update n takes n seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        self.seconds.append(float(report.step))


@pytest.fixture
def here(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """The same command in this process; its exit status and what it said."""
    log = logging.getLogger("regard")
    before = log.handlers, log.propagate, log.level
    monkeypatch.chdir(folder)

    def call(*words: str, out: str = "out") -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(["experiment", "baselines", "recipe.yaml", "--out", out, *words])
        return int(end.value.code or 0), capsys.readouterr().err

    yield call
    log.handlers, log.propagate, log.level = before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe and some pairs of words and digits."""
    folder = tmp_path_factory.mktemp("comparison")
    for name, first, last in (("train", 1, 121), ("dev", 300, 306), ("test", 400, 405)):
        numbers = [[int(digit) for digit in str(number * 7919)] for number in range(first, last)]
        lines = [f"{' '.join(NUMBERS[digit] for digit in digits)}\t{' '.join(map(str, digits))}" for digits in numbers]
        (folder / f"{name}.tsv").write_bytes("".join(line + "\n" for line in lines).encode())
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def table(folder: Path) -> str:
    result = command(folder, *OPTIONS)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


def test_all_three_are_trained_and_measured_alike(folder: Path, table: str) -> None:
    assert table == (folder / "out" / "results.md").read_text("utf-8")
    header, _, *lines = [line for line in table.splitlines() if line.startswith("|")]
    assert header == ("| model | parameters | updates | minutes | target tokens/s | validation loss | BLEU | chrF2 |")
    assert [line.split("|")[1].strip() for line in lines] == ["transformer", "lstm", "convolution"]
    values = json.loads((folder / "out" / "results.json").read_text("utf-8"))
    rows = values["rows"]
    assert [row["updates"] for row in rows] == [6, 6, 6]
    assert all(abs(row["parameters"] / rows[0]["parameters"] - 1) < 0.05 for row in rows)
    assert [row["training"]["schedule"]["peak_rate"] for row in rows] == [0.01, 0.02, 0.01]
    assert rows[2]["settings"]["decoder_layers"] == 2
    assert all(row["target tokens/s"] > 0 and row["minutes"] > 0 for row in rows)
    assert all("version:" in signature for signature in rows[0]["signatures"])
    assert "120 pairs" in values["facts"]["data"]


def test_each_learned_something_in_its_few_updates(folder: Path, table: str) -> None:
    for name in ("transformer", "lstm", "convolution"):
        lines = (folder / "out" / name / "metrics.jsonl").read_text("utf-8").splitlines()
        losses = [record["loss"] for line in lines if (record := json.loads(line))["kind"] == "validation"]
        assert len(losses) == 2
        assert losses[1] < losses[0] < 5.8  # ln 290 = 5.7
        assert len((folder / "out" / name / "test.txt").read_text("utf-8").splitlines()) == 5


def test_the_same_command_again_goes_on_where_it_was(folder: Path, table: str, here: Here) -> None:
    before = json.loads((folder / "out" / "results.json").read_text("utf-8"))["rows"]
    status, said = here(*OPTIONS)
    assert status == 0, said
    assert "lstm: going on from step 6" in said
    assert json.loads((folder / "out" / "results.json").read_text("utf-8"))["rows"] == before
    status, said = here(*OPTIONS, "--training.steps", "7")
    assert status == 2
    assert "out: holds a comparison with other settings of training; choose another --out" in said


def test_with_minutes_the_number_of_updates_is_that_which_fits(
    folder: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each update is said to take half a second, so 0.05 minutes are 6 of them."""
    monkeypatch.setattr(Comparison, "_seconds_a_step", lambda self, contender: 0.5)
    status, said = here("--minutes", "0.05", "--convolution.model.hidden", "4", out="timed")
    assert status == 0, said
    assert "lstm: 500 ms an update" in said
    rows = json.loads((folder / "timed" / "results.json").read_text("utf-8"))["rows"]
    assert [row["updates"] for row in rows] == [row["training"]["steps"] for row in rows] == [6, 6, 6]
    assert rows[2]["settings"]["hidden"] == 4


def test_an_update_is_timed_without_a_trace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds 1 to 5 of the first updates do not count, the mean of 6, 7 and 8 does; the model is forgotten."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(baselines, "TIMED_STEPS", 3)
    monkeypatch.setattr(baselines, "_Timer", Clock)
    settings = resolve(read_yaml(Path("recipe.yaml")), "test")
    comparison = Comparison(Path("unrun"), settings, ContendersSettings(), TerminalView(), lambda text: None, 1.0)
    assert comparison._seconds_a_step(comparison.contenders[1]) == 7.0
    assert sorted(path.name for path in Path("unrun").iterdir()) == ["data", "experiment.json", "tokenizer.json"]


def test_a_comparison_in_which_nothing_was_learned_may_begin_anew(folder: Path, here: Here) -> None:
    (folder / "early" / "lstm").mkdir(parents=True)
    (folder / "early" / "experiment.json").write_text('{"minutes": 3}', encoding="utf-8")
    (folder / "early" / "lstm" / "training.json").write_text('{"steps": 1000}', encoding="utf-8")
    status, said = here("--training.steps", "1", out="early")
    assert status == 0, said
    rows = json.loads((folder / "early" / "results.json").read_text("utf-8"))["rows"]
    assert [row["updates"] for row in rows] == [1, 1, 1]


def test_a_directory_of_something_else_is_left_alone(folder: Path, here: Here) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "letter.txt").touch()
    assert here(out="full") == (2, "regard: full: is not empty and holds no comparison; choose another --out\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "--minutes 0: should be above 0"),
        (["--modle.heads", "2"], "modle is not a setting; did you mean model"),
        (["--lstm.model.hiden", "2"], "lstm.model: hiden is not a setting; did you mean hidden"),
        (["--task", "language-model"], "task"),
        (["--transformer.model.d-ff", "3"], "transformer.model: the Transformer is the recipe's own"),
    ],
)
def test_mistakes_are_a_sentence(here: Here, words: list[str], message: str) -> None:
    status, said = here(*words, out="other")
    assert status == 2
    assert message in said
