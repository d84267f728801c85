"""What a directory says about the frames that its model hears."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.convert.whisper import FRAMES, refuse_other_frames, write_frames
from regard.errors import UserError
from regard.model.settings import ModelSettings

SETTINGS = ModelSettings.parse({"input": "frames", "tie": "decoder", "source_max_length": 1500}, "test")


def test_what_is_written_is_like_ours_and_what_transformers_reads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    write_frames(tmp_path, SETTINGS)
    refuse_other_frames(tmp_path, SETTINGS)
    theirs = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path)
    assert (theirs.nb_max_frames, theirs.feature_size, theirs.n_fft, theirs.hop_length) == (3000, 80, 400, 160)


def test_other_frames_are_refused_with_all_that_differs(tmp_path: Path) -> None:
    refuse_other_frames(tmp_path, SETTINGS)
    values = {"feature_size": 128, "sampling_rate": 8000, "hop_length": 160, "nb_max_frames": 3000}
    (tmp_path / FRAMES).write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"not supported: feature_size = 128; sampling_rate = 8000$"):
        refuse_other_frames(tmp_path, SETTINGS)
