"""Labels of texts and of words: what the model says, the same whatever stands beside a text, line by line."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import regard
from cli.small_encoders import classifier, filler
from regard.cli import main
from regard.errors import UserError
from regard.pipelines import write_directory

TEXTS = ["the dog is off", "on", "", "turn the light off and on and off, and do it again", "café 你好"]


def test_probabilities_are_what_the_model_says() -> None:
    pipeline = classifier()
    tokenizer, model = pipeline.tokenizer, pipeline.model
    ids = [tokenizer.bos, *tokenizer.encode(["the dog is off"])[0], tokenizer.eos]
    with torch.no_grad():
        expected = model.logits(model.encode(torch.tensor([ids])))[0].softmax(-1).tolist()
    [found] = pipeline.classify("the dog is off")
    assert {label.name: label.probability for label in found.labels} == pytest.approx(
        dict(zip(("no", "perhaps", "yes"), expected, strict=True))
    )
    assert found.best is found.labels[0]
    assert found.best.probability == pytest.approx(max(expected))


def test_words_have_the_label_of_their_first_token() -> None:
    pipeline = classifier("tokens")
    tokenizer, model = pipeline.tokenizer, pipeline.model
    words = ["the", "zebras", "off"]
    tokens = [tokenizer.encode([word])[0] for word in words]
    assert len(tokens[1]) > 1
    ids = [tokenizer.bos, *(each for word in tokens for each in word), tokenizer.eos]
    places = [1, 1 + len(tokens[0]), 1 + len(tokens[0]) + len(tokens[1])]
    with torch.no_grad():
        values, numbers = model.logits(model.encode(torch.tensor([ids])))[0, places].softmax(-1).max(-1)
    [found] = pipeline.label_words("the  zebras off")
    assert [word.text for word in found] == words
    assert [word.label.name for word in found] == [("no", "perhaps", "yes")[number] for number in numbers]
    assert [word.label.probability for word in found] == pytest.approx(values.tolist())


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_neither_batches_nor_threads_change_a_result(kind: str) -> None:
    pipeline = classifier(kind)

    def labels(texts: list[str]) -> list[list[tuple[str, float]]]:
        if kind == "text":
            return [[(each.name, each.probability) for each in found.labels] for found in pipeline.classify(texts)]
        return [[(word.label.name, word.label.probability) for word in words] for words in pipeline.label_words(texts)]

    alone = [labels([text])[0] for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        side_by_side = list(pool.map(lambda text: labels([text])[0], TEXTS * 4))
    together = labels(TEXTS)
    pipeline.workers = 3
    for found in (together, side_by_side[len(TEXTS) : 2 * len(TEXTS)], labels(TEXTS * 3)[: len(TEXTS)]):
        for expected, other in zip(alone, found, strict=True):
            assert [name for name, _ in other] == [name for name, _ in expected]
            assert [value for _, value in other] == pytest.approx([value for _, value in expected], abs=1e-5)
    assert alone[2] == []


def test_long_texts(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = classifier()
    long = "1" * 30
    with caplog.at_level(logging.WARNING, "regard"):
        logging.getLogger("regard").addHandler(caplog.handler)
        [found] = pipeline.classify([long])
    logging.getLogger("regard").removeHandler(caplog.handler)
    assert found.shortened
    assert "text 1: has 31 tokens, of which the model reads the first 22" in caplog.text
    assert found.labels == pipeline.classify("1" * 21)[0].labels

    words = classifier("tokens")
    sentence = " ".join(["light"] * 50)
    tokens = len(words.tokenizer.encode(["light"])[0])
    [labels] = words.label_words(sentence)
    assert len(labels) == 50
    fit = 22 // tokens  # words of a part
    assert [each.label for each in labels[fit : 2 * fit]] == [each.label for each in labels[:fit]]


def test_the_wrong_question_is_refused() -> None:
    with pytest.raises(UserError, match="labels texts as a whole, not words: use classify"):
        classifier().label_words("a")
    with pytest.raises(UserError, match="labels words, not texts as a whole: use label_words"):
        classifier("tokens").classify("a")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    pipelines = {"text": classifier(), "tokens": classifier("tokens"), "masked-lm": filler()}
    for name, pipeline in pipelines.items():
        write_directory(folder / name, pipeline, "# A card\n")
    return {name: folder / name for name in pipelines}


def test_a_directory_gives_back_the_pipeline(models: dict[str, Path]) -> None:
    assert regard.load(models["text"]).classify(TEXTS) == classifier().classify(TEXTS)
    assert regard.load(models["tokens"]).label_words(TEXTS) == classifier("tokens").label_words(TEXTS)


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    out, err = capfdbinary.readouterr()
    return int(stop.value.code or 0), out.decode(), err.decode()


def test_the_command_labels_lines(
    models: dict[str, Path], capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    text = "".join(f"{line}\n" for line in TEXTS)
    (tmp_path / "in.txt").write_text(text, encoding="utf-8", newline="\n")
    code, out, _ = run(capfdbinary, "classify", models["text"], "-i", tmp_path / "in.txt")
    expected = [each.best for each in classifier().classify(TEXTS)]
    assert code == 0
    assert out.split("\n") == [f"{best.name}\t{best.probability:.4f}" if best else "" for best in expected] + [""]
    code, out, _ = run(capfdbinary, "classify", models["text"], "on", "--best", "3")
    assert [*out.strip().split("\t")[::2]] == [label.name for label in classifier().classify("on")[0].labels]


def test_the_command_labels_words(models: dict[str, Path], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, _ = run(capfdbinary, "classify", models["tokens"], "the dog", "off")
    assert code == 0
    rows = [line.split("\t") for line in out.split("\n")]
    assert [row[0] for row in rows] == ["the", "dog", "", "off", "", ""]
    assert [row[1] for row in rows[:2]] == [word.label.name for word in classifier("tokens").label_words("the dog")[0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["masked-lm", "text"], r"another kind (masked-lm); use `regard fill`"),
        (["tokens", "text", "--best", "2"], "words get one label each"),
        (["text", "text", "--best", "0"], "--best 0: should be at least 1"),
    ],
)
def test_mistakes(
    models: dict[str, Path], capfdbinary: pytest.CaptureFixture[bytes], arguments: list[str], message: str
) -> None:
    code, out, err = run(capfdbinary, "classify", models[arguments[0]], *arguments[1:])
    assert (code, out) == (2, "")
    assert message in err
