"""What a model may be written in the place of."""

from __future__ import annotations

from pathlib import Path

from regard.errors import UserError

_OF_A_MODEL = """
    README.md config.json generation.json generation_config.json model*.safetensors model.safetensors.index.json
    tokenizer*.json special_tokens_map.json added_tokens.json vocab.* merges.txt *.model *.spm
    preprocessor_config.json processor_config.json
    model.bin shared_vocabulary.json source_vocabulary.json target_vocabulary.json
"""
"""What a directory may hold to be taken for a model, and replaced."""


def refuse_same(source: Path, target: Path) -> None:
    """Raise `UserError` if `target` is the model that is read, or what no model may be written in the place of."""
    if target.resolve() == source.resolve():
        raise UserError(f"{target}: is the model that is read; choose another directory to write")
    refuse_other(target)


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
