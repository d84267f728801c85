"""A directory that appears as a whole, and only in the place of one of its own kind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import JobError, UserError

_OF_A_MODEL = """
    README.md config.json generation.json generation_config.json model*.safetensors model.safetensors.index.json
    tokenizer*.json special_tokens_map.json added_tokens.json vocab.* merges.txt *.model *.spm
    preprocessor_config.json processor_config.json
"""
"""What a directory may hold to be taken for a model, and replaced."""


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A directory to write into, which takes the place of `directory` when all is written, or of nothing.

    Raises:
        UserError: something stands there that is not a model.
        JobError: the disk is full or does not let itself be written.
    """
    partial, before = (directory.with_name(f".{directory.name}.{what}") for what in ("partial", "before"))
    try:
        if before.exists() and not directory.exists():  # a run that was killed between two names
            before.rename(directory)
        refuse_other(directory)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        _take_place(partial, directory, before)
    except OSError as error:
        raise JobError(f"{directory}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _take_place(partial: Path, directory: Path, before: Path) -> None:
    shutil.rmtree(before, ignore_errors=True)
    if directory.exists():
        directory.rename(before)
    try:
        partial.rename(directory)
    except OSError:
        if before.exists():
            before.rename(directory)
        raise
    shutil.rmtree(before, ignore_errors=True)


def refuse_other(directory: Path) -> None:
    """Raise `UserError` if what stands at `directory` is not a model, or holds more than a model."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(f"{directory}: is a file; a model is written as a directory")
    contents = sorted(directory.iterdir())
    if not contents:
        return
    others = [path.name for path in contents if not any(path.match(pattern) for pattern in _OF_A_MODEL.split())]
    if others or not (directory / "config.json").is_file():
        shown = ", ".join((others or [path.name for path in contents])[:3])
        raise UserError(f"{directory}: exists and is not only a model (it holds {shown}); choose another directory")
