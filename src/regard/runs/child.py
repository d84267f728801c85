"""A function carried out in a process of its own: its memory is its own, and where memory runs out it is what ends."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from regard.data.encoding import end_with_parent
from regard.errors import JobError, UserError

T = TypeVar("T")

Tell = Callable[[Literal["say", "stage"], str], None]
"""Tells the other process a line for the user, or what begins now."""


class OutOfMemoryError(Exception):
    """Memory ran out in the stage that `args` names."""


def in_child(say: Callable[[str], None], function: Callable[..., T], *arguments: Any) -> T:
    """The result of `function(*arguments, tell)`, carried out in a fresh process.

    When the caller is interrupted, the process is ended.

    Raises:
        OutOfMemoryError: it was ended by the system, or could not get memory.
        UserError, JobError: what the function raised; JobError also if the process died otherwise.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(theirs, function, arguments), daemon=True)
    child.start()
    theirs.close()
    stage = "the beginning"
    try:
        while True:
            kind, value = ours.recv()
            if kind == "result":
                result: T = value
                return result
            if kind == "error":
                raise value
            if kind == "memory":
                raise OutOfMemoryError(stage)
            if kind == "stage":
                stage = value
            else:
                say(value)
    except EOFError:
        child.join()
        if child.exitcode == -signal.SIGKILL:
            raise OutOfMemoryError(stage) from None
        raise JobError(f"{stage}: the process died (exit status {child.exitcode}); what it said is above") from None
    finally:
        child.terminate()
        child.join()


def _work(channel: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In the child: carry out the function and send what came of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.getLogger("regard").setLevel(logging.ERROR)
    with suppress(OSError):  # what the system ends first where memory is short
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        channel.send(("result", function(*arguments, lambda kind, text: channel.send((kind, text)))))
    except (UserError, JobError) as error:
        channel.send(("error", error))
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)):
            raise
        channel.send(("memory", ""))
