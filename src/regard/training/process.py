"""The process that trains: its threads and its memory."""

from __future__ import annotations

import ctypes
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1


def settle(threads: int | None) -> None:
    """Use so many threads on CPUs, or as many as torch chooses, and keep memory that is freed."""
    if threads is not None:
        torch.set_num_threads(threads)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Tell the C library, where it is glibc.

    By default large tensors are given back to the system as soon as they are freed, and each step waits for the same
    pages to be zeroed again: a tenth of the time of two threads (docs/decisions/003-speed-on-a-cpu.md).
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_M_MMAP_THRESHOLD, _NEVER)
