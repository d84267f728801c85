"""Memory that stays with the process between the steps of a run."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, where it is glibc; elsewhere nothing happens.

    By default large tensors are given back to the system as soon as they are freed, and each step waits for the same pages
    to be zeroed again: a tenth of the time of two threads (docs/decisions/003-speed-on-a-cpu.md).
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_M_MMAP_THRESHOLD, _NEVER)
