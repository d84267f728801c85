"""`regard data back-translate` and `distill`, as a user runs them, on a small untrained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import regard
from cli.small_translator import command_line
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.search import engine
from regard.search.settings import SearchSettings
from regard.text.lines import one_line, read_lines, write_lines
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

LINES = ["a small dog runs", "", "two men talk about tea", "café Größe 你好", "the fox", "the dog and the fox"] * 3

Regard = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that ends its outputs now and then."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.learn(LINES, TokenizerSettings(size=280))
    torch.manual_seed(4)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, tie="none")
    tiny = EncoderDecoder(settings, tokenizer.size, tokenizer.size).eval()
    with torch.no_grad():
        tiny.output *= 3
        ids_BS = torch.arange(4, 44).view(4, 10)
        hidden_D = tiny(ids_BS, torch.ones_like(ids_BS, dtype=torch.bool), ids_BS).mean(dim=(0, 1))
        tiny.output[tokenizer.eos] += hidden_D * 8 / hidden_D.norm() ** 2
    search = SearchSettings(beam=2, extra_tokens=9)
    write_directory(directory, Translator(tiny, TokenizerPair(tokenizer, tokenizer), search), "# A card\n")
    return directory


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Regard]:
    """Run the command line in this process; its exit status, standard output and standard error."""
    monkeypatch.setattr(engine, "WINDOW", 4)  # a few lines take all paths
    with command_line(capfd) as command:
        yield command


@pytest.fixture
def text(tmp_path: Path) -> Path:
    write_lines(tmp_path / "text", LINES)
    return tmp_path / "text"


def pairs(directory: Path) -> list[tuple[str, str]]:
    assert sorted(path.name for path in directory.iterdir()) == ["source.txt", "target.txt"]
    return list(zip(read_lines(directory / "source.txt"), read_lines(directory / "target.txt"), strict=True))


def test_back_translation_by_a_seed(run: Regard, model: Path, text: Path, tmp_path: Path) -> None:
    for name, options in (("a", []), ("b", ["--seed", 1]), ("c", ["--seed", 2]), ("d", ["--batch-tokens", 30])):
        status, shown, _ = run("data", "back-translate", model, "--target", text, "--out", tmp_path / name, *options)
        assert status == 0
    made = pairs(tmp_path / "a")
    assert made == pairs(tmp_path / "b") == pairs(tmp_path / "d") != pairs(tmp_path / "c")
    assert f"d: {len(made)} pairs of 18 lines; left out " in shown
    assert "empty line (first in line 2)" in shown
    targets = iter(LINES)
    assert all(target in targets for _, target in made)  # in order
    assert all(source.strip() and target for source, target in made)


def test_back_translation_by_beam_search_is_what_translate_says(
    run: Regard, model: Path, text: Path, tmp_path: Path
) -> None:
    run("data", "back-translate", model, "--target", text, "--out", tmp_path / "pairs", "--beam", 3)
    found = regard.load(model, "cpu").hypotheses(LINES, beam=3)
    expected = [
        (each.best.text, line)
        for line, each in zip(LINES, found, strict=True)
        if each.best.finished and each.best.text.strip()
    ]
    assert pairs(tmp_path / "pairs") == [(one_line(text), line) for text, line in expected]


def test_distillation_takes_the_best_or_the_most_like(run: Regard, model: Path, text: Path, tmp_path: Path) -> None:
    run("data", "distill", model, "--source", text, "--out", tmp_path / "best", "--beam", 4)
    translator = regard.load(model, "cpu")
    found = dict(zip(LINES, translator.hypotheses(LINES, beam=4, nbest=4), strict=True))
    best = pairs(tmp_path / "best")
    assert best == [(line, one_line(found[line].best.text)) for line, _ in best]
    references = [[each for each in found[line].candidates if each.finished] for line in LINES]
    write_lines(tmp_path / "references", [one_line(each[-1].text) if each else "x" for each in references])
    words = ["--source", text, "--target", tmp_path / "references", "--beam", 4]
    run("data", "distill", model, *words, "--out", tmp_path / "near")
    assert len(pairs(tmp_path / "near")) == len(best)
    likes = dict(zip(LINES, read_lines(tmp_path / "references"), strict=True))
    nearest = [target == likes[source] for source, target in pairs(tmp_path / "near")]
    assert sum(nearest) > sum(target == likes[source] for source, target in best)


def test_interrupted_it_goes_on_and_gives_the_same(
    run: Regard, model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["data", "back-translate", model, "--target", text]
    run(*words, "--out", tmp_path / "whole")
    window, calls = engine._Engine.window, []

    def interrupted(*given: object) -> object:
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return window(*given)

    monkeypatch.setattr(engine._Engine, "window", interrupted)
    assert run(*words, "--out", tmp_path / "pairs")[0] == 130
    assert not (tmp_path / "pairs").exists()
    status, shown, _ = run(*words, "--out", tmp_path / "pairs")
    assert status == 0
    assert "going on after line 12 of 18" in shown
    for name in ("source.txt", "target.txt"):
        assert (tmp_path / "pairs" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--beam", "2", "--top-k", "3"], "--beam searches and --top-k draws; give one or the other"),
        (["--temperature", "-1"], "command line: temperature"),
        (["--target", "missing"], "missing: cannot be read"),
    ],
)
def test_wrong_use_is_one_sentence(
    run: Regard, model: Path, text: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    given = [] if "--target" in words else ["--target", text]
    status, _, complaint = run("data", "back-translate", model, *given, "--out", tmp_path / "pairs", *words)
    assert status == 2
    assert message in complaint
    assert "Traceback" not in complaint
    assert not (tmp_path / "pairs").exists()


def test_a_bad_line_is_known_before_anything_is_begun(run: Regard, model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"a dog\n" * 9 + b"\xff\n")
    words = ["data", "distill", model, "--source", tmp_path / "bad", "--out", tmp_path / "pairs"]
    status, _, complaint = run(*words)
    assert status == 2
    assert "line 10: byte 0xFF is not UTF-8" in complaint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad"]


def test_nothing_but_empty_lines_gives_no_pairs(run: Regard, model: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "empty", ["", " "])
    words = ["data", "distill", model, "--source", tmp_path / "empty", "--out", tmp_path / "pairs"]
    status, _, complaint = run(*words)
    assert status == 2
    assert "no line gave a pair (0 pairs of 2 lines; left out 2: empty line (first in line 1))" in complaint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]
