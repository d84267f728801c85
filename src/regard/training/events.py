"""Curves for TensorBoard, each value on the disk before the next step.

TensorBoard's own writers, torch's too, hold values back for minutes in a thread: a run that is killed loses those of
steps that its checkpoint has behind it, and a full disk is a traceback of that thread.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    """A new event file in a folder. Values of step `first` and later in older ones of it do not count any more."""

    def __init__(self, folder: Path, first: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # In this order TensorBoard reads them.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((folder / name).open("xb"))
        self._write(Event(file_version="brain.Event:2"))
        self._write(Event(step=first, session_log=SessionLog(status=SessionLog.START)))

    def add(self, name: str, value: float, step: int) -> None:
        """A value of a curve."""
        self._write(Event(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)])))

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been told already
            self._records.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        self._records.flush()
