"""`regard translate`, `evaluate` and `score`, run as a user runs them, on a small untrained model."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import regard
from cli.small_translator import command_line
from regard.errors import UserError
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

LINES = ["a small dog runs", "two men talk about tea", "café Größe 你好", "the quick brown fox jumps over the dog"]
COMMAND = [sys.executable, "-c", "from regard.cli import main; main()"]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

Regard = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.learn(LINES * 3, TokenizerSettings(size=300))
    torch.manual_seed(0)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, max_length=64)
    tiny = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    translator = Translator(tiny, TokenizerPair(tokenizer, tokenizer), SearchSettings(extra_tokens=2))
    write_directory(directory, translator, "# A card\n")
    return directory


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    texts = regard.load(model, "cpu").translate(LINES)
    return [text.replace("\n", " ").replace("\0", "\ufffd") for text in texts]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Regard]:
    """Run the command line in this process; its exit status, standard output and standard error."""
    with command_line(capfd) as command:
        yield command


def started(*words: object, **environment: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen([*COMMAND, *map(str, words)], stdin=pipe, stdout=pipe, stderr=pipe, env=whole)


def text_lines(path: Path) -> list[str]:
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def test_texts_given_as_arguments(run: Regard, model: Path, expected: list[str]):
    status, out, _ = run("translate", model, *LINES)
    assert (status, out.removesuffix("\n").split("\n")) == (0, expected)


def test_a_file_to_a_file(run: Regard, model: Path, expected: list[str], tmp_path: Path):
    source, output = tmp_path / "in.gz", tmp_path / "out"
    source.write_bytes(gzip.compress("\n".join([*LINES, "", LINES[0]]).encode()))
    status, out, _ = run("translate", model, "--input", source, "--output", output)
    assert (status, out) == (0, "")
    assert text_lines(output) == [*expected, "", expected[0]]


def test_a_failure_leaves_the_old_file(run: Regard, model: Path, tmp_path: Path):
    output = tmp_path / "out"
    output.write_text("old")
    status, _, err = run("translate", model, "--input", tmp_path / "missing", "--output", output)
    assert status == 2
    assert "missing" in err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert output.read_text() == "old"


def test_nbest_and_scores(run: Regard, model: Path):
    _, out, _ = run("translate", model, *LINES[:2], "--nbest", "3", "--beam", "5")
    rows = [line.split("\t", 3) for line in out.removesuffix("\n").split("\n")]
    found = regard.load(model, "cpu").hypotheses(LINES[:2], nbest=3, beam=5)
    assert [row[:2] for row in rows] == [[str(line), str(rank)] for line in (1, 2) for rank in (1, 2, 3)]
    scores = [candidate.score for translation in found for candidate in translation.candidates]
    assert [float(row[2]) for row in rows] == pytest.approx(scores, abs=1e-3)
    _, out, _ = run("translate", model, LINES[0], "--scores", "--alpha", "0")
    (best,) = (translation.best for translation in regard.load(model, "cpu").hypotheses(LINES[0], alpha=0))
    assert float(out.split("\t")[0]) == pytest.approx(best.log_probability, abs=1e-3)


def test_what_did_not_end_is_said(run: Regard, model: Path):
    found = regard.load(model, "cpu").hypotheses(LINES, extra_tokens=1)
    cut = sum(not translation.best.finished for translation in found)
    _, _, err = run("translate", model, *LINES, "--extra-tokens", "1")
    assert cut > 0
    assert f"{cut} of 4 translations did not end" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate", "{model}-none", "x"], "does not exist"),
        (["translate", "{model}/config.json", "x"], "is a file"),
        (["translate", "{empty}", "x"], "not a model directory"),
        (["translate", "{model}", "x", "--input", "y"], "not both"),
        (["translate", "{model}", "x", "--beam", "0"], "beam: input should be greater"),
        (["translate", "{model}", "x", "--nbest", "9"], "nbest = 9 needs a beam"),
        (["translate", "{model}", "x", "--device", "warp"], "device warp: is not available"),
        (["evaluate", "{model}", "--reference", "{two}"], "evaluate what"),
        (["evaluate", "{model}", "--source", "{one}", "--reference", "{two}"], "has 1 lines and"),
        (["evaluate", "--hypotheses", "{one}", "--reference", "{two}"], "one has 1 lines and"),
        (["evaluate", "--hypotheses", "{two}", "--reference", "{two}", "--against", "{one}"], "one has 1: line n"),
        (
            ["evaluate", "{model}", "--source", "{two}", "--reference", "{two}", "--against", "{one}", "-o", "{one}"],
            "one has 1: line n",
        ),
        (["evaluate", "--hypotheses", "{two}", "--reference", "{two}", "--beam", "2"], "leave out the model and"),
        (["evaluate", "{model}", "--hypotheses", "{two}", "--reference", "{two}"], "leave out the model"),
        (["score", "{model}", "--source", "{one}", "--target", "{two}", "-o", "{three}"], "has 1 lines and"),
        (["score", "{model}", "--source", "{two}", "--target", "{two}", "--batch-tokens", "0"], "1 or more"),
    ],
)
def test_mistakes_are_one_sentence(run: Regard, model: Path, tmp_path: Path, words: list[str], message: str):
    (tmp_path / "one").write_text("a\n")
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "three").write_text("a\n")
    (tmp_path / "empty").mkdir()
    places = {"model": model, **{name: tmp_path / name for name in ("one", "two", "three", "empty")}}
    status, out, err = run(*(word.format(**places) for word in words))
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("regard: ")
    assert err.count("\n") == 1
    assert (tmp_path / "three").read_text() == "a\n"


def test_standard_input_whatever_the_locale(model: Path, expected: list[str]):
    lines = ["", *LINES]
    data = b"\n".join(line.encode() for line in lines) + b"\n\xff\xfeA\n"
    out, err = started("translate", model, **ASCII).communicate(data)
    found = out.decode().removesuffix("\n").split("\n")
    assert found[:-1] == ["", *expected]
    assert len(found) == len(lines) + 1
    assert b"standard input, line 6: byte 0xFF is not UTF-8; read as U+FFFD" in err
    by_argument = started("translate", model, LINES[2], **ASCII)
    assert by_argument.communicate()[0].decode() == expected[2] + "\n"


def test_a_line_is_answered_before_the_next_one_comes(model: Path, expected: list[str]):
    process = started("translate", model)
    assert process.stdin is not None
    assert process.stdout is not None
    for line, answer in zip(LINES, expected, strict=True):
        process.stdin.write(f"{line}\n".encode())
        process.stdin.flush()
        assert process.stdout.readline().decode() == answer + "\n"
    process.communicate()
    assert process.returncode == 0


def test_a_reader_that_has_enough_ends_it_quietly(model: Path):
    process = started("translate", model, "--beam", "1", "--extra-tokens", "1")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"a\n" * 5000)
    process.stdin.flush()  # and stays open: the program must not wait for the end of its input
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert b"Error" not in process.stderr.read()


def test_evaluate(run: Regard, model: Path, expected: list[str], tmp_path: Path):
    source, reference, output, other = (tmp_path / name for name in ("source", "reference", "output", "other"))
    source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    reference.write_text("\n".join(expected) + "\n", encoding="utf-8", newline="\n")
    other.write_text("x y z\n" * 4)
    status, out, _ = run("evaluate", model, "--source", source, "--reference", reference, "--output", output)
    assert status == 0
    assert text_lines(output) == expected
    bleu, chrf = out.strip().split("\n")
    assert chrf.split()[:2] == ["chrF2", "100.00"]
    assert bleu.split()[2].startswith("nrefs:1|case:mixed|eff:no|tok:13a|")
    words = ("--reference", reference, "--reference", other, "--metrics", "chrf", "--chrf-word-order", "2")
    _, out, _ = run("evaluate", "--hypotheses", output, *words)
    assert out.startswith("chrF2++")
    assert "nrefs:2|" in out
    _, out, _ = run("evaluate", "--hypotheses", output, "--against", other, "--reference", reference)
    assert "against   0.00" in out
    assert "p = 0.00" in out
    assert "bs:1000|seed:12345|" in out


def test_score(run: Regard, model: Path, tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    target.write_text("\n".join(reversed(LINES)) + "\n", encoding="utf-8")
    status, out, err = run("score", model, "--source", source, "--target", target, "--batch-tokens", "20")
    rows = [line.split("\t") for line in out.strip().split("\n")]
    scores = regard.load(model, "cpu").score(LINES, LINES[::-1])
    assert status == 0
    assert [float(value) for value, _ in rows] == pytest.approx([pair.log_probability for pair in scores], abs=1e-3)
    assert [int(tokens) for _, tokens in rows] == [pair.tokens for pair in scores]
    total = sum(pair.log_probability for pair in scores)
    assert f"4 pairs, {sum(pair.tokens for pair in scores)} tokens: log-probability {total:.2f}, perplexity" in err


def test_a_training_run_stands_for_its_model(model: Path, tmp_path: Path, expected: list[str]):
    (tmp_path / "model").symlink_to(model)
    assert regard.load(tmp_path).translate(LINES[0]) == regard.load(model).translate([LINES[0]])


def test_options_of_the_object(model: Path):
    translator = regard.load(model)
    with pytest.raises(UserError, match="did you mean beam"):
        translator.translate("a", beams=3)
    with pytest.raises(UserError, match="2 sources and 1 targets"):
        translator.score(["a", "b"], "a")
    assert translator.settings == SearchSettings(extra_tokens=2)
    assert translator.translate([]) == []


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "generation.json"])
def test_a_damaged_directory_is_named(model: Path, tmp_path: Path, name: str):
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=name):
        regard.load(tmp_path)


def test_another_tokenizer_is_refused(model: Path, tmp_path: Path):
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    Tokenizer.learn(["only a few words"], TokenizerSettings(size=270)).save(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="not the model"):
        regard.load(tmp_path)
