"""A model directory as a Python object.

config.json        what the model is made of
model.safetensors  its weights
tokenizer.json     (or tokenizer.source.json and tokenizer.target.json)
generation.json    how to search, unless told otherwise
README.md          the model card
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.evaluation.scoring import PairScore, score
from regard.model import store
from regard.model.transformer import EncoderDecoder
from regard.search import engine
from regard.search.engine import Translation
from regard.search.settings import SearchSettings
from regard.text.lines import atomic_write
from regard.text.tokenizer import TokenizerPair

GENERATION = "generation.json"
CARD = "README.md"

PATIENCE = 0.02
"""Seconds without further input after which a stream's lines are translated: too short for a person to notice."""


class Translator:
    """Translates texts. Threads may share one: a call changes nothing on it.

    Search options of each call are the fields of `SearchSettings` (beam, alpha, nbest, ...); those not given are the
    model directory's.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizers: TokenizerPair,
        settings: SearchSettings | None = None,
        workers: int = 1,
        languages: store.Languages | None = None,
    ) -> None:
        """From the parts; `load` reads them from a directory. The model is put into evaluation mode.

        With several `workers`, so many batches of a call are worked on at once, each by a thread.
        """
        self.model = model.eval()
        self.tokenizers = tokenizers
        self.settings = settings or SearchSettings()
        self.workers = workers
        self.languages = languages or store.Languages()

    def translate(self, texts: str | Sequence[str], **options: Any) -> list[str]:
        """The best translation of each text, in order. A single string counts as a list of one.

        Raises:
            UserError: an option is unknown or has an impossible value.
        """
        return [translation.best.text for translation in self.hypotheses(texts, **options)]

    def hypotheses(self, texts: str | Sequence[str], **options: Any) -> list[Translation]:
        """As `translate`, with all that was found: `nbest` candidates with scores, token ids and whether they ended."""
        return list(self.stream(_listed(texts), patience=None, name="text", **options))

    def stream(
        self, texts: Iterable[str], *, patience: float | None = PATIENCE, name: str = "input", **options: Any
    ) -> Iterator[Translation]:
        """Translate texts as they come, in order, without holding all of them.

        Args:
            texts: read ahead by a thread when `patience` is given.
            patience: what has come is translated when nothing more has for so many seconds; None waits for about
                a thousand texts at a time, which is a little faster for input that is there already.
            name: stands in warnings before the number of the line.
        """
        settings = self._settings(options)
        return engine.translate(
            self.model, self.tokenizers, texts, settings, patience=patience, workers=self.workers, name=name
        )

    def score(self, sources: str | Sequence[str], targets: str | Sequence[str]) -> list[PairScore]:
        """How probable the model finds each target as the translation of its source.

        Raises:
            UserError: there are not as many sources as targets.
        """
        sources, targets = _listed(sources), _listed(targets)
        if len(sources) != len(targets):
            raise UserError(f"{len(sources)} sources and {len(targets)} targets: each source needs one target")
        return list(self.score_stream(zip(sources, targets, strict=True)))

    def score_stream(
        self, pairs: Iterable[tuple[str, str]], batch_tokens: int = 4096, name: str = "pairs"
    ) -> Iterator[PairScore]:
        """Score (source, target) pairs in order, without holding all of them; see `regard.evaluation.scoring.score`."""
        return score(self.model, self.tokenizers, pairs, batch_tokens, workers=self.workers, name=name)

    def _settings(self, options: dict[str, Any]) -> SearchSettings:
        return SearchSettings.parse({**self.settings.model_dump(), **options}, "search options")


def load(path: str | Path, device: str | torch.device | None = None, workers: int = 1) -> Translator:
    """Read a model directory, or that of a training run. Without `device`, the model goes to a GPU if there is one.

    `workers` batches are worked on at once (`Translator`). On a CPU, as many as there are cores beside
    `torch.set_num_threads(1)` is the fastest choice for many texts.

    Raises:
        UserError: the directory does not exist, or something in it is missing or damaged.
    """
    directory = store.find(Path(path))
    config = store.read_config(directory)
    model = store.read(directory, choose_device(device))
    tokenizers = TokenizerPair.load(directory)
    sizes = tokenizers.source.size, tokenizers.target.size
    fits = sizes == (config.vocabulary.source, config.vocabulary.target)
    if not fits or config.tokenizers not in (None, tokenizers.fingerprint):
        raise UserError(f"{directory}: the tokenizer is not the model's own; copy the directory again")
    generation = directory / GENERATION
    values = store.read_json(generation) if generation.exists() else {}
    return Translator(model, tokenizers, SearchSettings.parse(values, str(generation)), workers, config.languages)


def write_directory(directory: Path, translator: Translator, card: str) -> None:
    """Write a model directory that `load` reads; `card` is the text of its README.md.

    It appears as a whole, in place of one that was there before, so that weights and settings always belong together.
    """
    partial, before = (directory.with_name(f".{directory.name}.{what}") for what in ("partial", "before"))
    for leftover in (partial, before):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    translator.tokenizers.save(partial)
    for name, text in ((GENERATION, translator.settings.model_dump_json(indent=2) + "\n"), (CARD, card)):
        with atomic_write(partial / name) as file:
            file.write(text.encode("utf-8"))
    store.write(partial, translator.model, translator.languages, translator.tokenizers.fingerprint)
    if directory.exists():
        directory.rename(before)
    partial.rename(directory)
    shutil.rmtree(before, ignore_errors=True)


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


def _listed(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts
