"""Sound as a model hears it: log-mel frames (Whisper: Radford et al. 2022, arXiv 2212.04356, section 2.2).

Shapes: W samples of a waveform, N frames, M mel bins, K frequencies of the Fourier transform.
"""

from __future__ import annotations

import wave
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import UserError

RATE = 16_000
"""Samples of a second."""
WINDOW = 400
"""Samples of a frame: 25 ms."""
HOP = 160
"""Samples from one frame to the next: 10 ms."""


def log_mel(waveform_W: Float[Tensor, " W"], bins: int, frames: int | None = None) -> Float[Tensor, "M N"]:
    """The frames of a waveform of 16,000 samples a second between -1 and 1, scaled to about -1 to 1.

    Args:
        bins: mel frequencies from 0 to 8,000 Hz.
        frames: silence is added up to so many, and what is longer is cut; None: as many as there are.
    """
    if frames is not None:
        missing = frames * HOP - len(waveform_W)
        waveform_W = torch.nn.functional.pad(waveform_W, (0, missing))
    window = torch.hann_window(WINDOW, device=waveform_W.device)
    spectrum_KN = torch.stft(waveform_W.float(), WINDOW, HOP, window=window, return_complex=True)[:, :-1]
    mel_MN = mel_filters(bins).to(waveform_W.device) @ spectrum_KN.abs().square()
    log_MN = mel_MN.clamp(min=1e-10).log10()
    # What lies 80 dB below the loudest is silence.
    return (torch.maximum(log_MN, log_MN.max() - 8) + 4) / 4


@lru_cache(maxsize=4)
def mel_filters(bins: int) -> Float[Tensor, "M K"]:
    """Triangular filters of equal area, evenly spaced on the mel scale (Slaney 1998, Auditory Toolbox)."""
    edges = _hertz(np.linspace(0, _mel(RATE / 2), bins + 2))
    frequencies_K = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies_K - low) / (centre - low), (high - frequencies_K) / (high - centre)
    filters_MK = np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
    return torch.from_numpy(filters_MK).float()


_LINEAR, _KNEE, _STEP = 3 / 200, 1000.0, 27 / np.log(6.4)
"""Slaney's scale is linear up to 1,000 Hz, and logarithmic above."""


def _mel(hertz: float) -> float:
    return float(_LINEAR * _KNEE + np.log(hertz / _KNEE) * _STEP if hertz > _KNEE else _LINEAR * hertz)


def _hertz(mel: np.ndarray) -> np.ndarray:
    above = _KNEE * np.exp((mel - _LINEAR * _KNEE) / _STEP)
    return np.where(mel > _LINEAR * _KNEE, above, mel / _LINEAR)


def read_wav(path: Path | str) -> Float[Tensor, " W"]:
    """The waveform in a WAV file of 16,000 samples a second and 16 bits; several channels become their mean.

    Raises:
        UserError: the file is missing, damaged, or of another kind.
    """
    try:
        with wave.open(str(path), "rb") as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            content = file.readframes(file.getnframes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (wave.Error, EOFError) as error:
        raise UserError(f"{path}: is damaged or no WAV file ({error}); {_CONVERSION}") from None
    if rate != RATE or width != 2:
        raise UserError(f"{path}: has {rate} samples a second of {8 * width} bits, not {RATE} of 16; {_CONVERSION}")
    whole = len(content) // (2 * channels) * 2 * channels
    samples = np.frombuffer(content[:whole], dtype="<i2").reshape(-1, channels)
    return torch.from_numpy(samples.mean(axis=1, dtype=np.float32) / 2**15)


_CONVERSION = f"make one with: ffmpeg -i FILE -ar {RATE} -ac 1 -c:a pcm_s16le OUT.wav"
