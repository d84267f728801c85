"""A model directory on disk, read and written as a whole.

config.json        what the model is made of
model.safetensors  its weights
tokenizer.json     (or tokenizer.source.json and tokenizer.target.json)
generation.json    how to search, unless told otherwise
shortlist.safetensors  which tokens a source may be translated with (optional, of translation models)
README.md          the model card
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import nn

from regard.data.shortlist import SHORTLIST, Shortlist
from regard.errors import UserError
from regard.model import store
from regard.model.settings import AlignmentHead
from regard.settings import Settings, read_json
from regard.text.directories import whole_directory
from regard.text.lines import atomic_write
from regard.text.tokenizer import TokenizerPair

S = TypeVar("S", bound=Settings)

GENERATION = "generation.json"
CARD = "README.md"

PATIENCE = 0.02
"""Seconds without further input after which a stream's lines are worked on: too short for a person to notice."""

VERBS = {
    "encoder-decoder": "regard translate",
    "causal-decoder": "regard generate",
    "masked-lm": "regard fill",
    "text": "regard classify",
    "tokens": "regard classify",
    "speech": "regard.load",
    "images": "regard.load",
}
"""The command for each kind of model (`ModelDirectory.kind`), or the function."""


@dataclass(frozen=True)
class ModelDirectory:
    """What a model directory holds."""

    path: Path
    config: store.ModelConfig
    model: nn.Module
    vocabularies: TokenizerPair | None
    """None where a model neither reads nor writes tokens."""
    generation: dict[str, Any]
    """The contents of `generation.json`; empty where there is none."""
    shortlist: Shortlist | None = None
    """Which tokens a source may be translated with, if the directory says so."""

    @property
    def kind(self) -> str:
        """What the model is for: the family of a decoder, `speech` if it hears, the kind of its head for an encoder.

        An encoder that labels what it sees is of the kind `images`.
        """
        if self.config.head is not None:
            return "images" if self.config.model.input == "patches" else self.config.head.kind
        return "speech" if self.config.model.input == "frames" else self.config.family

    @property
    def tokenizers(self) -> TokenizerPair:
        """Those of a model that reads or writes tokens."""
        if self.vocabularies is None:
            raise ValueError(f"{self.path}: a model without tokens has no tokenizers")
        return self.vocabularies

    def settings(self, kind: type[S]) -> S:
        """`generation.json` as settings of this class; `UserError` names what is wrong in it."""
        return kind.parse(self.generation, str(self.path / GENERATION))


class Pipeline(ABC):
    """A model with its tokenizers: texts in, results out. Threads may share one: a call changes nothing on it."""

    kinds: ClassVar[tuple[str, ...]] = ()
    """Which models it is for (`ModelDirectory.kind`)."""

    model: nn.Module
    tokenizers: TokenizerPair | None
    """None for a model without tokens."""
    settings: Settings | None
    """What `generation.json` holds."""
    languages: store.Languages
    shortlist: Shortlist | None = None
    """Which tokens a source may be translated with: of translators that have learned one."""
    alignment: AlignmentHead | None = None
    """Where the model has learned to say which words stand for each other, if it has."""
    workers: int = 1
    """So many batches of a call are worked on at once, each by a thread."""

    @classmethod
    @abstractmethod
    def of(cls, directory: ModelDirectory) -> Self:
        """The pipeline of a directory that has been read."""

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device | None = None, workers: int = 1) -> Self:
        """As `regard.load`, for this kind of model only.

        Raises:
            UserError: as `regard.load`, or the model is of another kind.
        """
        directory = read_directory(Path(path), device)
        if directory.kind not in cls.kinds:
            raise UserError(f"{path}: holds a model of another kind ({directory.kind}); use `{VERBS[directory.kind]}`")
        pipeline = cls.of(directory)
        pipeline.workers = workers
        return pipeline

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device


def read_directory(path: Path, device: str | torch.device | None = None) -> ModelDirectory:
    """Read a model directory, or that of a training run. Without `device`, the model goes to a GPU if there is one.

    Raises:
        UserError: the directory does not exist, or something in it is missing or damaged.
    """
    directory = store.find(path)
    config = store.read_config(directory)
    model = store.read(directory, choose_device(device))
    tokenizers = None if config.vocabulary == store.Vocabulary() else _tokenizers(directory, config)
    values = read_json(directory / GENERATION, missing={})
    path, shortlist = directory / SHORTLIST, None
    if path.exists() and tokenizers is not None:
        shortlist = Shortlist.load(path, tokenizers)
    return ModelDirectory(directory, config, model, tokenizers, values, shortlist)


def _tokenizers(directory: Path, config: store.ModelConfig) -> TokenizerPair:
    tokenizers = TokenizerPair.load(directory)
    sizes = ((tokenizers.source.size, config.vocabulary.source), (tokenizers.target.size, config.vocabulary.target))
    fits = all(expected in (None, size) for size, expected in sizes)
    if not fits or config.tokenizers not in (None, tokenizers.fingerprint):
        raise UserError(f"{directory}: the tokenizer is not the model's own; copy the directory again")
    return tokenizers


def fingerprint(directory: Path) -> str:
    """Of all in a model directory, or that of a training run, that decides what the model says.

    Raises:
        UserError: there is no such directory.
    """
    digest = hashlib.sha256()
    for path in sorted(store.find(directory).iterdir()):
        if path.suffix in (".json", ".safetensors"):
            digest.update(f"{path.name}\n".encode())
            with path.open("rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
    return digest.hexdigest()


def write_directory(directory: Path, pipeline: Pipeline, card: str) -> None:
    """Write a model directory that `regard.load` reads; `card` is the text of its README.md.

    It appears as a whole, in place of one that was there before, so that weights and settings always belong together.
    """
    tokenizers = pipeline.tokenizers
    texts = {CARD: card}
    if pipeline.settings is not None:
        texts[GENERATION] = pipeline.settings.model_dump_json(indent=2) + "\n"
    with whole_directory(directory) as partial:
        if tokenizers is not None:
            tokenizers.save(partial)
        if tokenizers is not None and pipeline.shortlist is not None:
            pipeline.shortlist.save(partial / SHORTLIST, tokenizers)
        for name, text in texts.items():
            with atomic_write(partial / name) as file:
                file.write(text.encode("utf-8"))
        made_by = None if tokenizers is None else tokenizers.fingerprint
        store.write(partial, pipeline.model, pipeline.languages, made_by, pipeline.alignment)


def choose_device(name: str | torch.device | None) -> torch.device:
    """The device of this name, or without one a GPU if there is one; `UserError` where it is not available."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"device {name}: is not available here; choose cpu, cuda or cuda:0, ...") from None
    return device


def listed(texts: str | Sequence[str]) -> Sequence[str]:
    """A single text counts as a list of one."""
    return [texts] if isinstance(texts, str) else texts
