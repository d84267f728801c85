"""Log-mel frames and WAV files."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.sound import RATE, log_mel, mel_filters, read_wav
from regard.errors import UserError


def tone(hertz: float, seconds: float = 1.0) -> torch.Tensor:
    return 0.5 * torch.sin(2 * torch.pi * hertz * torch.arange(int(RATE * seconds)) / RATE)


def test_a_tone_is_loudest_in_the_filter_around_it() -> None:
    filters_MK = mel_filters(80)
    for hertz in (440.0, 1000.0, 3520.0):
        loudest = log_mel(tone(hertz), 80)[:, 50].argmax()
        assert loudest == filters_MK[:, round(hertz / 40)].argmax()


def test_a_second_is_a_hundred_frames_and_silence_fills_up() -> None:
    assert log_mel(tone(440), 80).shape == (80, 100)
    filled = log_mel(tone(440), 80, frames=150)
    assert filled.shape == (80, 150)
    assert torch.equal(filled[:, 110:], filled.min().expand(80, 40))
    assert log_mel(tone(440), 80, frames=50).shape == (80, 50)


def test_nothing_lies_more_than_eighty_decibels_below_the_loudest() -> None:
    frames = log_mel(tone(440), 80, frames=150)
    assert float(frames.max() - frames.min()) == pytest.approx(2.0)
    assert torch.isfinite(log_mel(torch.zeros(RATE), 80)).all()


@pytest.mark.parametrize("bins", [80, 128])
def test_frames_are_those_of_transformers(bins: int) -> None:
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    waveform = tone(300, 2.0) + torch.randn(2 * RATE, generator=generator) * 0.05
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    theirs = extractor(waveform.numpy(), sampling_rate=RATE, return_tensors="pt").input_features[0]
    torch.testing.assert_close(log_mel(waveform, bins, frames=3000), theirs, rtol=0, atol=1e-4)


def write(path: Path, samples: np.ndarray, rate: int = RATE, width: int = 2) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return path


def test_a_file_is_read_and_channels_become_their_mean(tmp_path: Path) -> None:
    samples = np.array([[0, 0], [2**14, 0], [-(2**15), -(2**15)], [100, -100]])
    waveform = read_wav(write(tmp_path / "a.wav", samples))
    assert waveform.tolist() == [0.0, 0.25, -1.0, 0.0]


def test_other_files_are_refused_with_the_way_out(tmp_path: Path) -> None:
    write(tmp_path / "slow.wav", np.zeros((4, 1)), rate=8000)
    with pytest.raises(UserError, match=r"slow\.wav: has 8000 samples a second .* ffmpeg"):
        read_wav(tmp_path / "slow.wav")
    (tmp_path / "text.wav").write_text("text")
    with pytest.raises(UserError, match=r"text\.wav: is damaged or no WAV file"):
        read_wav(tmp_path / "text.wav")
    with pytest.raises(UserError, match=r"none\.wav: cannot be read"):
        read_wav(tmp_path / "none.wav")
