"""A model that reads sound and writes text, as a Python object: `Transcriber`.

Shapes: B pieces of sound, W samples of a waveform, M mel bins, N frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from regard.data.sound import HOP, log_mel, read_wav
from regard.errors import UserError
from regard.model.store import Languages
from regard.model.transformer import EncoderDecoder
from regard.pipelines.directory import ModelDirectory, Pipeline
from regard.search.beam import beam_search
from regard.search.decoder import CachedDecoder
from regard.search.processors import Ban, MinimumLength, NoRepeat, Processor
from regard.search.settings import SearchSettings
from regard.search.windows import side_by_side
from regard.text.tokenizer import TokenizerPair

BATCH = 8
"""So many pieces of sound are read at once."""

OPTIONS = "beam", "alpha", "min_tokens", "no_repeat"
"""Of a search that has no words as its source, and one output for each."""

Sound = str | Path | Tensor | np.ndarray
"""A WAV file, or a waveform: 16,000 samples a second between -1 and 1."""


class Transcriber(Pipeline):
    """Writes down what is said. Threads may share one: a call changes nothing on it.

    Search options of each call are the fields of `SearchSettings` that `OPTIONS` names; those not given are the model
    directory's. The tokenizer says in which language it writes, by what its output begins with.
    """

    kinds = ("speech",)

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizers: TokenizerPair,
        settings: SearchSettings | None = None,
        workers: int = 1,
        languages: Languages | None = None,
    ) -> None:
        """From the parts; `load` reads them from a directory. The model is put into evaluation mode."""
        self.model: EncoderDecoder = model.eval()
        self.tokenizers: TokenizerPair = tokenizers
        self.settings: SearchSettings = settings or SearchSettings()
        self.workers = workers
        self.languages = languages or Languages()
        self.frames = 2 * model.settings.source_reach
        """What the model hears at once: it was trained on so many frames, silence added."""

    @classmethod
    def of(cls, directory: ModelDirectory) -> Self:
        settings = directory.settings(SearchSettings)
        assert isinstance(directory.model, EncoderDecoder)
        return cls(directory.model, directory.tokenizers, settings, languages=directory.config.languages)

    def transcribe(self, sounds: Sound | Sequence[Sound], **options: Any) -> list[str]:
        """What is said in each sound, in order. A single one counts as a list of one.

        A sound longer than the model hears at once (Whisper: 30 seconds) is cut into pieces of that length, whose
        texts are put together; a word at a cut may be lost.

        Raises:
            UserError: a file can't be read; or an option is unknown, means nothing here or has an impossible value.
        """
        settings = SearchSettings.parse({**self.settings.model_dump(), **options}, "search options")
        if meaningless := [name for name in options if name not in OPTIONS]:
            known = ", ".join(OPTIONS)
            raise UserError(f"search options: {meaningless[0]} means nothing for sound; what does: {known}")
        waveforms = [_waveform(sound) for sound in _listed(sounds)]
        pieces = [
            (place, piece_W)
            for place, waveform_W in enumerate(waveforms)
            for piece_W in torch.split(waveform_W, self.frames * HOP)
            if len(piece_W)
        ]
        batches = [pieces[start : start + BATCH] for start in range(0, len(pieces), BATCH)]
        texts: list[list[str]] = [[] for _ in waveforms]

        def search(batch: list[tuple[int, Tensor]]) -> list[str]:
            return self._search([piece_W for _, piece_W in batch], settings)

        for batch, found in zip(batches, side_by_side(search, batches, self.workers), strict=True):
            for (place, _), text in zip(batch, found, strict=True):
                texts[place].append(text.strip())
        return [" ".join(filter(None, parts)) for parts in texts]

    def _search(self, pieces: Sequence[Tensor], settings: SearchSettings) -> list[str]:
        target = self.tokenizers.target
        *forced, begin = self.tokenizers.target_begin
        processors: list[Processor] = [Ban(target.forbidden, self.device)]
        if settings.min_tokens:
            processors.append(MinimumLength(self.tokenizers.target_end, settings.min_tokens, prompt=1))
        if settings.no_repeat:
            processors.append(NoRepeat(settings.no_repeat))
        with torch.inference_mode():
            frames_BMN = torch.stack([log_mel(piece, self.model.settings.frames.bins, self.frames) for piece in pieces])
            found = beam_search(
                CachedDecoder(self.model, frames_BMN.to(self.device), None, forced),
                [self.model.settings.max_length - len(forced)] * len(pieces),
                settings,
                begin=begin,
                end=self.tokenizers.target_end,
                processors=processors,
                device=self.device,
            )
        return target.decode([list(hypotheses[0].ids) for hypotheses in found])


def _listed(sounds: Sound | Sequence[Sound]) -> Sequence[Sound]:
    return [sounds] if isinstance(sounds, str | Path | Tensor | np.ndarray) else sounds


def _waveform(sound: Sound) -> Tensor:
    waveform_W = read_wav(sound) if isinstance(sound, str | Path) else torch.as_tensor(sound)
    if waveform_W.dim() != 1 or not waveform_W.is_floating_point():
        raise ValueError("a waveform is one row of numbers between -1 and 1")
    return waveform_W.float()
