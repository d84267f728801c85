"""Images have labels: learned from files, killed and resumed, used as an object; what does not fit is a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import regard
from regard.data.images import read_images, write_images
from regard.errors import UserError
from regard.recipes import merge, parse_yaml
from regard.runs.tasks import resolve, written
from runs.small_runs import Killed, Recipe, carry_out


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Squares of 4 x 4 pixels that are bright on one side."""
    random = np.random.default_rng(0)
    for part, count in (("train", 120), ("dev", 30), ("test", 30)):
        images = random.uniform(0, 0.4, (count, 4, 4)).astype(np.float32)
        sides = random.integers(0, 2, count)
        for image, side in zip(images, sides, strict=True):
            image[:, 2 * side : 2 * side + 2] += 0.5
        write_images(tmp_path / f"{part}.npz", images, [("left", "right")[side] for side in sides])
    patches = {"height": 4, "width": 4, "size": 2, "channels": 1}
    return {
        "task": "image-classification",
        "data": {part: {"source": str(tmp_path / f"{part}.npz")} for part in ("train", "dev", "test")},
        "model": {
            "d_model": 16,
            "d_ff": 32,
            "heads": 2,
            "encoder_layers": 1,
            "positions": "learned",
            "norm_placement": "pre",
            "patches": patches,
        },
        "images": 16,
        "training": {
            "steps": 60,
            "seed": 2,
            "threads": 1,
            "schedule": {"kind": "linear", "peak_rate": 0.01, "warmup_steps": 5},
        },
        "validation": {"every": 10},
    }


def test_learned_killed_resumed_and_used(tmp_path: Path, recipe: Recipe) -> None:
    said = carry_out(tmp_path / "unbroken", recipe)
    assert "test: accuracy 100.0 (images:30)" in said
    with pytest.raises(Killed):
        carry_out(tmp_path / "run", recipe, kill=25)
    assert any("going on from step 20" in line for line in carry_out(tmp_path / "run", recipe))
    paths = [tmp_path / directory / "model" / "model.safetensors" for directory in ("unbroken", "run")]
    assert paths[0].read_bytes() == paths[1].read_bytes()

    model = regard.load(tmp_path / "run", device="cpu")
    found = read_images(tmp_path / "test.npz")
    results = model.classify(found.images_NCHW)
    assert [labels[0].name for labels in results] == list(found.names)
    assert sum(label.probability for label in results[0]) == pytest.approx(1)
    assert model.classify(found.images_NCHW[7:8])[0][0].probability == pytest.approx(
        results[7][0].probability, abs=1e-5
    )
    with pytest.raises(UserError, match="images of 1 x 5 x 4 where the model reads 1 x 4 x 4"):
        model.classify(np.zeros((2, 5, 4), np.float32))
    settings = resolve(recipe, "recipe")
    assert resolve(parse_yaml(written(settings), "again"), "again") == settings


def test_whole_numbers_are_scaled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.full((2, 3, 4, 4), 255, np.uint8), labels=np.array([3, 4]))
    found = read_images(tmp_path / "a.npz")
    assert found.images_NCHW.shape == (2, 3, 4, 4)
    assert bool((found.images_NCHW == 1).all())
    assert found.names == ("3", "4")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "is no .npz file with the arrays images and labels"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_images(tmp_path / "a.npz")


def test_a_file_that_would_need_unpickling_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([{"a": 1}, {"b": 2}]), labels=np.array([0, 1]))
    with pytest.raises(UserError, match=r"is no \.npz file"):
        read_images(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"patches": {"height": 8}}}, r"holds images of \(1, 4, 4\) where model.patches has \(1, 8, 4\)"),
        ({"model": {"input": "tokens", "tie": "all"}}, "model.input: tokens reads no images"),
        ({"data": {"dev": None}}, "data.dev: images for validation are missing"),
        ({"tokenizer": {"size": 300}}, "tokenizer means nothing to the task image-classification"),
        ({"data": {"train": {"target": "b"}}}, "data.train.target: images and labels stand in one file"),
        ({"data": {"max_length": 30}}, "data.max_length means nothing to the task image-classification"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, recipe: Recipe, changes: Recipe, message: str) -> None:
    with pytest.raises(UserError, match=message):
        carry_out(tmp_path / "run", merge(recipe, changes))
