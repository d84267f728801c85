"""The libraries that were built, whose kinds of CPU this one can stand in for."""

from __future__ import annotations

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from regard.native import library


def built(kind: str) -> Path | None:
    folder = Path(library.__file__).parent
    return next((path for suffix in EXTENSION_SUFFIXES if (path := folder / (kind + suffix)).exists()), None)


def libraries() -> dict[str, ctypes.CDLL]:
    """By kind, best first."""
    paths = {kind: path for kind in library.KINDS if (path := built(kind)) is not None}
    return {kind: loaded for kind, path in paths.items() if (loaded := library._load(path)) is not None}
