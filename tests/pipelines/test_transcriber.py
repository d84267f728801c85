"""Sound to text: pieces, batches and files, against the parts and against `transformers`."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.data.sound import HOP, RATE, log_mel
from regard.errors import UserError
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines.directory import write_directory
from regard.pipelines.transcriber import Transcriber
from regard.search.beam import beam_search
from regard.search.decoder import CachedDecoder
from regard.search.processors import Ban, MinimumLength, NoRepeat
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

WHISPER = {
    "d_model": 16,
    "d_ff": 24,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "positions": "learned",
    "max_length": 12,
    "source_max_length": 25,
    "input": "frames",
    "embedding_scale": 1.0,
    "norm_placement": "pre",
    "feed_forward": "gelu",
    "tie": "decoder",
}
PIECE = 50 * HOP


@pytest.fixture(scope="module")
def transcriber() -> Transcriber:
    tokenizer = Tokenizer.learn(["what is said is written down"] * 3, TokenizerSettings(size=270))
    torch.manual_seed(0)
    model = EncoderDecoder(ModelSettings.parse(WHISPER, "test"), None, tokenizer.size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return Transcriber(model, TokenizerPair(tokenizer, tokenizer), SearchSettings(beam=2))


def sounds(*samples: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(count, generator=generator) - 0.5 for count in samples]


@pytest.mark.parametrize("rules", [{}, {"no_repeat": 1, "min_tokens": 10}])
def test_a_sound_is_searched_as_its_frames_are(transcriber: Transcriber, rules: dict[str, int]) -> None:
    (sound,) = sounds(3000)
    tokenizer, model = transcriber.tokenizers.target, transcriber.model
    frames = log_mel(sound, 80, 50)[None]
    found = beam_search(
        CachedDecoder(model, frames, None),
        [12],
        SearchSettings(beam=3),
        begin=tokenizer.bos,
        end=tokenizer.eos,
        processors=[Ban(tokenizer.forbidden), *([MinimumLength(tokenizer.eos, 10, 1), NoRepeat(1)] if rules else [])],
    )
    ids = found[0][0].ids
    (text,) = tokenizer.decode([list(ids)])
    assert transcriber.transcribe(sound, beam=3, **rules) == [text.strip()]
    assert text.strip()
    assert (len(set(ids)) == len(ids) >= 10) == bool(rules)


def test_what_means_nothing_for_sound_is_refused(transcriber: Transcriber) -> None:
    (sound,) = sounds(3000)
    for name, value in {"coverage": 0.5, "forbid": "said", "split": "always", "nbest": 2}.items():
        with pytest.raises(UserError, match=f"{name} means nothing for sound; what does: beam, alpha"):
            transcriber.transcribe(sound, **{name: value})


def test_long_sounds_are_heard_in_pieces_and_neighbours_change_nothing(transcriber: Transcriber) -> None:
    several = sounds(PIECE * 2 + 1000, 0, 500, PIECE)
    long, nothing, short, exact = transcriber.transcribe(several)
    assert nothing == ""
    parts = transcriber.transcribe(list(several[0].split(PIECE)))
    assert len(parts) == 3
    assert long == " ".join(filter(None, parts))
    assert transcriber.transcribe(several[2].numpy()) == [short]
    assert transcriber.transcribe([several[3]]) == [exact]


def test_a_directory_is_loaded_as_a_transcriber_and_reads_files(transcriber: Transcriber, tmp_path: Path) -> None:
    write_directory(tmp_path / "model", transcriber, "# A card\n")
    again = regard.load(tmp_path / "model", device="cpu")
    assert isinstance(again, Transcriber)
    (sound,) = sounds(4000)
    samples = (sound * 2**15).round().to(torch.int16)
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.numpy().astype("<i2").tobytes())
    assert again.transcribe(tmp_path / "a.wav") == transcriber.transcribe(samples.float() / 2**15)
    with pytest.raises(UserError, match=r"none\.wav: cannot be read"):
        again.transcribe(str(tmp_path / "none.wav"))
    with pytest.raises(UserError, match="search options: baem is not a setting; did you mean beam"):
        again.transcribe(sound, baem=2)


def test_whole_numbers_are_no_waveform(transcriber: Transcriber) -> None:
    with pytest.raises(ValueError, match="between -1 and 1"):
        transcriber.transcribe(np.zeros(100, dtype=np.int16))
