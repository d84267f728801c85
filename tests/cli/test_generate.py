"""`regard generate`, run as a user runs it, on a small untrained model that ends now and then."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import regard
from cli.small_translator import command_line
from regard.evaluation.perplexity import perplexity
from regard.model.settings import ModelSettings
from regard.model.transformer import CausalDecoder
from regard.pipelines import TextGenerator, write_directory
from regard.search.settings import GenerationSettings
from regard.text.tokenizer import Tokenizer, TokenizerSettings

LINES = ["a small dog runs\nand barks", "two men talk about tea", "café Größe 你好", ""]

Regard = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("language") / "model"
    tokenizer = Tokenizer.learn(LINES * 3, TokenizerSettings(size=290))
    torch.manual_seed(0)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, decoder_layers=1, max_length=32, positions="learned")
    language_model = CausalDecoder(settings, tokenizer.size)
    with torch.no_grad():
        language_model.output[tokenizer.encode(["\n"])[0][-1]] *= 3  # line feeds are common
    write_directory(directory, TextGenerator(language_model, tokenizer, GenerationSettings(max_tokens=9)), "# A card\n")
    return directory


@pytest.fixture
def generator(model: Path) -> TextGenerator:
    return TextGenerator.load(model, "cpu")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Regard]:
    """Run the command line in this process; its exit status, standard output and standard error."""
    with command_line(capfd) as command:
        yield command


def as_lines(texts: list[str]) -> str:
    return "".join(text.replace("\n", "\\n").replace("\0", "\ufffd") + "\n" for text in texts)


def test_one_prompt_is_continued_as_it_stands(run: Regard, model: Path, generator: TextGenerator):
    (text,) = generator.generate(LINES[0], seed=4, max_tokens=12)
    assert "\n" in text
    assert run("generate", model, LINES[0], "--seed", 4, "--max-tokens", 12) == (0, text + "\n", "")
    _, out, _ = run("generate", model, LINES[0], "--seed", 4, "--max-tokens", 12, "--echo")
    assert out == LINES[0] + text + "\n"


def test_an_option_that_is_not_given_is_the_models(run: Regard, model: Path, generator: TextGenerator):
    (result,) = generator.results("two", temperature=0)
    assert len(result.best.ids) == 9 or result.best.finished
    assert run("generate", model, "two", "--temperature", 0)[1] == result.best.text + "\n"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--temperature", "0.7", "--top-k", "9", "--top-p", "0.8", "--min-p", "0.01", "--seed", "3", "--n", "2"], {}),
        (["--beam", "3", "--alpha", "1", "--n", "2"], {"beam": 3, "alpha": 1, "n": 2}),
        (["--contrastive", "0.5", "--candidates", "3"], {"contrastive": 0.5, "candidates": 3}),
        (
            ["--temperature", "0", "--repetition-penalty", "1.3", "--no-repeat", "2", "--min-tokens", "4"],
            {"temperature": 0, "repetition_penalty": 1.3, "no_repeat": 2, "min_tokens": 4},
        ),
        (
            ["--seed", "1", "--endless", "--sinks", "2", "--recent", "6", "--max-tokens", "50"],
            {"seed": 1, "endless": True, "sinks": 2, "recent": 6, "max_tokens": 50},
        ),
        (["--seed", "1", "--stop", "e", "--stop", "\n"], {"seed": 1, "stop": ("e", "\n")}),
    ],
)
def test_options_reach_the_search(
    run: Regard, model: Path, generator: TextGenerator, words: list[str], options: dict[str, object]
):
    options = options or {"temperature": 0.7, "top_k": 9, "top_p": 0.8, "min_p": 0.01, "seed": 3, "n": 2}
    assert run("generate", model, *LINES[:2], *words)[:2] == (0, as_lines(generator.generate(LINES[:2], **options)))


def test_a_file_to_a_file_line_by_line(run: Regard, model: Path, generator: TextGenerator, tmp_path: Path):
    prompts = [LINES[1], "", LINES[2]]
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(prompts) + "\n", encoding="utf-8", newline="\n")
    assert run("generate", model, "--input", source, "--output", output, "--seed", 2)[:2] == (0, "")
    assert output.read_bytes().decode() == as_lines(generator.generate(prompts, seed=2))


def test_json_keeps_the_text_and_says_how_it_ended(run: Regard, model: Path, generator: TextGenerator):
    status, out, _ = run("generate", model, *LINES, "--seed", 2, "--n", 2, "--json", "--max-tokens", 20)
    results = generator.results(LINES, seed=2, n=2, max_tokens=20)
    expected = [(result.prompt, each) for result in results for each in result.continuations]
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [line["prompt"] for line in found] == [prompt for prompt, _ in expected]
    for line, (_, each) in zip(found, expected, strict=True):
        assert (line["text"], tuple(line["ids"]), line["stopped"]) == (each.text, each.ids, each.stopped)
        assert line["log_probability"] == pytest.approx(each.log_probability, abs=1e-4)


def test_a_prompt_typed_is_answered_before_the_next_one_comes(model: Path, generator: TextGenerator):
    command = [
        sys.executable,
        "-c",
        "from regard.cli import main; main()",
        "generate",
        str(model),
        "--temperature",
        "0",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for prompt in LINES[1:3]:
            process.stdin.write(f"{prompt}\n".encode())
            process.stdin.flush()
            answer = process.stdout.readline().decode()
            assert answer == as_lines(generator.generate(prompt, temperature=0))
    assert process.returncode == 0


def test_a_prompt_beyond_the_model_costs_that_prompt_only(run: Regard, model: Path, generator: TextGenerator):
    long = "dog " * 40
    status, out, err = run("generate", model, "two", long, "--seed", 1)
    assert (status, out) == (0, as_lines([*generator.generate("two", seed=1), ""]))
    assert "text, line 2: has " in err
    assert "the model's length is 32" in err
    status, out, err = run("generate", model, long)
    assert (status, out) == (2, "")
    assert "nothing can follow; shorten it, or ask for endless text" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "-1"], "temperature: input should be greater than or equal to 0"),
        (["--temperature", "nan"], "temperature: input should be"),
        (["--top-p", "1.5"], "top_p: input should be less than or equal to 1"),
        (["--max-tokens", "0"], "max_tokens: input should be greater than or equal to 1"),
        (["--beam", "2", "--contrastive", "0.5"], "two ways of searching"),
        (["--beam", "2", "--n", "3"], "n = 3 needs a beam of at least that size"),
        (["--beam", "2", "--seed", "1"], "seed is an option of drawing and has no meaning with beam search"),
        (["--temperature", "0", "--n", "2"], "all texts would be the same"),
        (["--endless", "--recent", "40"], "more than the model's length of 32 tokens"),
        (["--stop", ""], "an empty text stands everywhere"),
        (["--input", "x"], "not both"),
        (["--warmth", "1"], "--warmth"),
    ],
)
def test_mistakes_are_one_sentence(run: Regard, model: Path, words: list[str], message: str):
    status, out, err = run("generate", model, "two", *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_help_has_a_flag_for_each_setting_and_examples(run: Regard):
    status, out, _ = run("generate", "--help")
    assert status == 0
    for name in GenerationSettings.model_fields:
        assert f"--{name.replace('_', '-')} " in out
    assert 'regard generate runs/shakespeare "ROMEO:" --temperature 0.8 --seed 1' in out


def test_a_model_of_another_kind_names_its_command(run: Regard, model: Path):
    status, out, err = run("translate", model, "two")
    assert (status, out) == (2, "")
    assert "use `regard generate`" in err


def test_perplexity_is_that_of_the_model(generator: TextGenerator):
    text = "two men talk about a small dog " * 5
    expected = perplexity(generator.model, generator.tokenizer, text, context=20, stride=7)
    assert generator.perplexity(text, context=20, stride=7) == expected
    assert 1 < expected.per_token < 10 * generator.tokenizer.size


def test_load_gives_the_pipeline_of_the_family(model: Path, generator: TextGenerator):
    found = regard.load(model, "cpu")
    assert isinstance(found, TextGenerator)
    assert found.settings == GenerationSettings(max_tokens=9)
    assert found.generate("two", seed=1) == generator.generate("two", seed=1)
