"""The Python of the documentation runs as it stands and prints what the page says; both languages have the same.

A block of Python directly followed by a block of text must print that text. The models that pages assume to be
there are small ones with random weights.
"""

from __future__ import annotations

import contextlib
import io
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.data.binarise import binarise
from regard.model import adapters
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder
from regard.pipelines import Classifier, MaskFiller, TextGenerator, Translator, write_directory
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "README.zh-CN.md",
    "docs/guide/python.md",
    "docs/guide/searching.md",
    "docs/guide/alignments.md",
    "docs/guide/language-models.md",
    "docs/guide/encoders.md",
    "docs/guide/fine-tuning.md",
    "docs/guide/formats.md",
    "docs/learn/forward-pass.md",
]
TRANSLATED = [("README.md", "README.zh-CN.md"), ("docs/learn/forward-pass.md", "docs/learn/forward-pass.zh-CN.md")]

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with what it must print, or with nothing."""
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.fixture
def folder_with_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a model in runs/mine and the text files that pages name."""
    torch.manual_seed(1)
    lines = ["a dog runs", "two men talk", "turn on the light", "Schalte das Licht ein"]
    tokenizer = Tokenizer.learn(lines, TokenizerSettings(size=280))
    settings = ModelSettings(d_model=16, d_ff=16, heads=2, encoder_layers=1, decoder_layers=1)
    model = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    search = SearchSettings(extra_tokens=5)
    write_directory(
        tmp_path / "runs/mine/model", Translator(model, TokenizerPair(tokenizer, tokenizer), search), "# A model\n"
    )
    pairs = [("a dog runs", "two men talk"), ("turn on the light", "Schalte das Licht ein")]
    (tmp_path / "runs/mine/data").mkdir()
    binarise(pairs, TokenizerPair(tokenizer, tokenizer), tmp_path / "runs/mine/data/train.arrow")
    (tmp_path / "test.en").write_text("a dog runs\ntwo men talk\n", encoding="utf-8")
    (tmp_path / "test.de").write_text("ein Hund rennt\nzwei Männer reden\n", encoding="utf-8")
    (tmp_path / "test.txt").write_text("a dog runs\ntwo men talk\n" * 10, encoding="utf-8")
    write_other_families(tmp_path, lines)
    monkeypatch.chdir(tmp_path)


def write_other_families(folder: Path, lines: list[str]) -> None:
    """A decoder in runs/lm and models/base, adapters of it, and encoders in runs/encoder and runs/labels."""
    tokenizer = Tokenizer.learn(lines, TokenizerSettings(size=280, mask=True))
    settings = ModelSettings(
        d_model=16, d_ff=16, heads=2, encoder_layers=1, decoder_layers=1, max_length=64, tie="decoder"
    )
    decoder = CausalDecoder(settings, tokenizer.size)
    labels = HeadSettings(kind="text", labels=("error", "entity"))
    masked, labelled = (
        BidirectionalEncoder(settings, tokenizer.size, head) for head in (HeadSettings(kind="masked-lm"), labels)
    )
    pipelines = {
        "runs/lm": TextGenerator(decoder, tokenizer),
        "models/base": TextGenerator(decoder, tokenizer),
        "runs/encoder": MaskFiller(masked, tokenizer),
        "runs/labels": Classifier(labelled, tokenizer),
    }
    for name, pipeline in pipelines.items():
        write_directory(folder / name, pipeline, "# A model\n")
    chosen = adapters.AdapterSettings()
    adapters.apply(decoder, chosen)
    adapters.save(folder / "runs/adapted/adapters", adapters.adapters(decoder, chosen))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("folder_with_model")
def test_python_runs_and_prints_what_the_page_says(page: str) -> None:
    session: dict[str, object] = {"__name__": "__main__"}
    found = blocks(page)
    assert found
    options = torch._tensor_str.PRINT_OPTS.precision, torch._tensor_str.PRINT_OPTS.sci_mode
    try:
        for number, (code, expected) in enumerate(found, start=1):
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(code, f"{page}, block {number}", "exec"), session)
            if expected:
                assert output.getvalue() == expected, f"block {number}"
    finally:
        torch.set_printoptions(precision=options[0], sci_mode=options[1])


@pytest.mark.parametrize(("page", "translation"), TRANSLATED)
def test_a_translated_page_has_the_same_python(page: str, translation: str) -> None:
    assert blocks(page) == blocks(translation)


@pytest.mark.parametrize(("page", "translation"), TRANSLATED)
def test_a_translated_page_has_the_same_commands_and_figures(page: str, translation: str) -> None:
    shell = re.compile(r"^```(?:sh|console|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in (page, translation)]
    commands = [[_without_comments(block) for block in shell.findall(text)] for text in texts]
    figures = [sorted(re.findall(r"\b\d+(?:[.,]\d+)*\b", "\n".join(_table_rows(text)))) for text in texts]
    assert commands[0] == commands[1]
    assert figures[0] == figures[1]


def _without_comments(block: str) -> str:
    return "\n".join(line.split("  #")[0].rstrip() for line in block.splitlines() if not line.startswith("#"))


def _table_rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_paper_map_names_what_exists() -> None:
    text = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    rows = "\n".join(_table_rows(text))
    tests = set(re.findall(r"`(tests/[^`]+)`", rows))
    names = set(re.findall(r"`((?:[a-z_]+\.)+\w+)`", text))
    assert len(tests) > 10
    assert len(names) > 20
    assert [path for path in sorted(tests) if not (ROOT / path).is_file()] == []
    for name in names:
        assert pkgutil.resolve_name(f"regard.{name}") is not None


def test_the_settings_of_a_recipe_are_listed_with_what_they_mean() -> None:
    """In a process of its own: the classes of this one are made already, without their docstrings."""
    code = "import settings_reference as hook\nprint(hook.on_page_markdown(hook.MARK))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, check=True)
    meanings = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", run.stdout, re.MULTILINE))
    assert meanings["label_smoothing"]
    assert {name for name, meaning in meanings.items() if not meaning.strip()} == {"height", "width", "channels"}
