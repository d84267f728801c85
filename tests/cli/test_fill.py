"""Masks are filled: the right ids are asked for, the same whatever stands beside a text, in order, line by line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import regard
from cli.small_encoders import filler
from regard.cli import main
from regard.data.masking import control_ids
from regard.errors import UserError
from regard.pipelines import write_directory

TEXTS = [
    "the [MASK] is off",
    "turn the light [MASK].",
    "[MASK] the light <mask> off",
    "[MASK]",
    "failed to [MASK]s to the device, the dog is off",
]


def test_fillings_are_what_the_model_says_of_the_hidden_token() -> None:
    pipeline = filler()
    tokenizer, model = pipeline.tokenizer, pipeline.model
    [before, after] = tokenizer.encode(["turn the light", "off"])
    ids = [tokenizer.bos, *before, tokenizer.mask, *after, tokenizer.eos]
    with torch.no_grad():
        states = model.encode(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool))
        expected = model.logits(states[0, 1 + len(before)]).softmax(-1)
    [filled] = pipeline.fill("turn the light [MASK] off", best=tokenizer.size)
    assert len(filled.masks) == 1
    assert len(filled.masks[0]) == tokenizer.size - 5  # no control token is offered
    for each in filled.masks[0]:
        assert each.probability == pytest.approx(float(expected[each.id]), abs=1e-6)
    values = [each.probability for each in filled.masks[0]]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("the [MASK] is off", ["the", None, " is off"]),
        ("light [MASK].", ["light", None, "."]),
        ("[MASK]s off", [None, "s off"]),
        ("the[MASK]  off", ["the", None, "  off"]),
        ("a [MASK] <mask> b", ["a", None, None, " b"]),
        ("[MASK]1", [None, "1"]),
    ],
)
def test_what_stands_beside_a_mask_keeps_its_spaces(text: str, parts: list[str | None]) -> None:
    pipeline = filler()
    ids = pipeline._encode(text, "text")
    spelled = []
    for number in ids:
        piece = None if number == pipeline.tokenizer.mask else pipeline.tokenizer.bytes_of(number).decode()
        if piece is None or not spelled or spelled[-1] is None:
            spelled.append(piece)
        else:
            spelled[-1] += piece
    spelled = [part.removeprefix(" ") if part and not at else part for at, part in enumerate(spelled)]
    assert spelled == parts


def test_neither_batches_nor_threads_change_a_result() -> None:
    pipeline = filler()
    alone = [pipeline.fill(text)[0] for text in TEXTS]
    together = pipeline.fill(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        side_by_side = list(pool.map(lambda text: pipeline.fill(text)[0], TEXTS * 5))
    pipeline.workers = 3
    for found in (together, side_by_side[: len(TEXTS)], pipeline.fill(TEXTS * 3)[len(TEXTS) : 2 * len(TEXTS)]):
        for one, other in zip(alone, found, strict=True):
            assert other.text == one.text
            for expected, mask in zip(one.masks, other.masks, strict=True):
                assert [each.id for each in mask] == [each.id for each in expected]
                assert [each.probability for each in mask] == pytest.approx([each.probability for each in expected])
    assert [len(each.masks) for each in alone] == [1, 1, 2, 1, 1]


def test_of_equally_probable_tokens_the_lower_ids_come_first() -> None:
    equal = filler()
    for parameter in equal.model.parameters():
        parameter.data.zero_()
    (filled,) = equal.fill("the [MASK] is off", best=4)
    first = [number for number in range(20) if number not in control_ids(equal.tokenizer)][:4]
    assert [each.id for each in filled.masks[0]] == first


def test_a_filled_text_is_the_text_with_the_best_tokens() -> None:
    pipeline = filler()
    [filled] = pipeline.fill("turn the light [MASK].")
    piece = pipeline.tokenizer.bytes_of(filled.masks[0][0].id).decode("utf-8", "replace")
    assert filled.text == f"turn the light{piece}."
    assert filled.masks[0][0].text == piece.strip(" ")


def test_texts_that_cannot_be_filled() -> None:
    pipeline = filler()
    with pytest.raises(UserError, match=r"text 2: has no mask; write \[MASK\]"):
        pipeline.fill(["the [MASK]", "nothing"])
    with pytest.raises(UserError, match=r"text 1: has 42 tokens, of which the model can read 22"):
        pipeline.fill("1" * 40 + "[MASK]")
    found = list(pipeline.stream(["nothing", "", "the [MASK]"], best=2))
    assert [len(each.masks) for each in found] == [0, 0, 1]
    assert [each.text for each in found[:2]] == ["nothing", ""]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filler") / "model"
    write_directory(path, filler(), "# A card\n")
    return path


def test_a_directory_gives_back_the_pipeline(model: Path) -> None:
    assert regard.load(model).fill(TEXTS) == filler().fill(TEXTS)


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    out, err = capfdbinary.readouterr()
    return int(stop.value.code or 0), out.decode(), err.decode()


def test_the_command_says_each_guess(model: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, _ = run(capfdbinary, "fill", model, "[MASK] the light <mask> off", "the [MASK]", "--best", "2")
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert [row[:2] for row in rows] == [["1", "1"]] * 2 + [["1", "2"]] * 2 + [["2", "1"]] * 2
    expected = filler().fill(["the [MASK]"], best=2)[0].masks[0]
    assert [row[2:] for row in rows[-2:]] == [[f"{each.probability:.4f}", each.text] for each in expected]


def test_the_command_fills_a_file(model: Path, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the [MASK]\n\nnothing here\n", encoding="utf-8", newline="\n")
    code, out, err = run(
        capfdbinary, "fill", model, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt", "--texts"
    )
    assert (code, out) == (0, "")
    assert (tmp_path / "out.txt").read_text("utf-8").splitlines() == [
        filler().fill(["the [MASK]"])[0].text, "", "nothing here",
    ]  # fmt: skip
    assert err.count("warning: ") == 1
    assert "in.txt, line 3: has no mask" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "the [MASK]"], "nowhere: does not exist"),
        (["MODEL", "the [MASK]", "--best", "0"], "--best 0: should be at least 1"),
        (["MODEL", "the [MASK]", "--input", "file"], "give either texts or --input FILE"),
    ],
)
def test_mistakes(model: Path, capfdbinary: pytest.CaptureFixture[bytes], arguments: list[str], message: str) -> None:
    code, out, err = run(capfdbinary, "fill", *(str(model) if each == "MODEL" else each for each in arguments))
    assert (code, out) == (2, "")
    assert message in err
