"""Labelled images in files, and the digits that scikit-learn brings along.

A file is NumPy's `.npz` with two arrays: `images` [N, H, W] or [N, C, H, W], whole numbers up to 255 or numbers with a
fraction as they are to be read, and `labels` [N], text or whole numbers.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.data.examples import ImageDataset
from regard.errors import UserError
from regard.text.lines import atomic_write

PARTS = ("train", "dev", "test")


@dataclass(frozen=True, eq=False)
class Images:
    """Images and the names of their labels."""

    images_NCHW: NDArray[np.float32]
    names: tuple[str, ...]

    def dataset(self, labels: Sequence[str], origin: Path) -> ImageDataset:
        """With numbers for the labels; `UserError` for one that is not among `labels`."""
        numbers = {label: number for number, label in enumerate(labels)}
        unknown = sorted(set(self.names) - numbers.keys())
        if unknown:
            raise UserError(f"{origin}: the label {unknown[0]!r} is not one of the training data ({', '.join(labels)})")
        return ImageDataset(self.images_NCHW, np.array([numbers[name] for name in self.names]), tuple(labels))


def read_images(path: Path) -> Images:
    """Read a file of images; `UserError` says what is wrong with it. Nothing in it can run."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images, labels = arrays["images"], arrays["labels"]
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{path}: is no .npz file with the arrays images and labels ({error})") from None
    if images.ndim not in (3, 4) or labels.shape != images.shape[:1] or not len(images):
        raise UserError(
            f"{path}: images of shape {images.shape} and labels of shape {labels.shape} do not fit together"
        )
    return Images(as_input(images), tuple(map(str, labels.tolist())))


def as_input(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """Images as a model reads them: [N, C, H, W], whole numbers scaled from 0..255 to 0..1."""
    scaled = images.astype(np.float32) / np.float32(255 if np.issubdtype(images.dtype, np.integer) else 1)
    return scaled[:, None] if scaled.ndim == 3 else scaled


def write_images(path: Path, images: NDArray[np.float32], labels: Sequence[str]) -> None:
    """Write a file that `read_images` reads."""
    content = io.BytesIO()
    np.savez_compressed(content, images=images, labels=np.array(labels))
    with atomic_write(path) as file:
        file.write(content.getvalue())


def digits(folder: Path) -> dict[str, Path]:
    """Handwritten digits, 8 x 8 pixels (Alpaydin and Kaynak 1998), as a file for each part of a corpus in `folder`.

    1,797 images: 1,257 to learn from, 180 for validation and 360 to test on, drawn at random, the same ones each time.
    """
    paths = {part: folder / f"{part}.npz" for part in PARTS}
    if all(path.exists() for path in paths.values()):
        return paths
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UserError("the digits come with scikit-learn: pip install scikit-learn") from None
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.images))
    images = (found.images[order] / 16).astype(np.float32)
    labels = [str(label) for label in found.target[order]]
    bounds = {"test": (0, 360), "dev": (360, 540), "train": (540, len(order))}
    folder.mkdir(parents=True, exist_ok=True)
    for part, (start, end) in bounds.items():
        write_images(paths[part], images[start:end], labels[start:end])
    return paths
