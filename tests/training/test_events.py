"""Curves for TensorBoard, as its own reader finds them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from regard.errors import JobError
from regard.training import events
from regard.training.events import EventFile
from regard.training.logs import MetricsLog
from regard.training.trainer import Trainer


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder)).Reload()
    return [(scalar.step, scalar.value) for scalar in found.Scalars(name)]


def test_a_later_file_takes_back_what_an_earlier_one_has_from_its_first_step_on(tmp_path: Path) -> None:
    first = EventFile(tmp_path, 1)
    for step in (1, 2, 3, 4):
        first.add("training/loss", 10.0 + step, step)
    second = EventFile(tmp_path, 3)
    second.add("training/loss", 23.0, 3)
    assert curve(tmp_path, "training/loss") == [(1, 11.0), (2, 12.0), (3, 23.0)]
    first.close()
    second.close()


def test_a_killed_process_has_written_all_and_a_record_cut_short_is_passed_over(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from regard.training.events import EventFile;"
        "file = EventFile(Path(sys.argv[1]), 1); file.add('loss', 0.5, 1); file.add('loss', 0.25, 2);"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == -9
    (path,) = tmp_path.iterdir()
    assert curve(tmp_path, "loss") == [(1, 0.5), (2, 0.25)]
    path.write_bytes(path.read_bytes()[:-3])
    later = EventFile(tmp_path, 2)
    later.add("loss", 0.125, 2)
    assert curve(tmp_path, "loss") == [(1, 0.5), (2, 0.125)]


def test_a_full_disk_is_a_failed_job_and_no_traceback_of_a_thread(
    make_trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def flush(_writer: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(events.RecordWriter, "flush", flush)
    trainer: Trainer = make_trainer([MetricsLog(tmp_path, every=1)], steps=1)
    with pytest.raises(JobError, match=r"tensorboard: cannot be written: No space left.*make room and train again"):
        trainer.train()
    assert "Traceback" not in capfd.readouterr().err
