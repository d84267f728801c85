"""What lets a command begin sooner."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Import what a verb needs without looking for garbage meanwhile, or later in what was imported.

    Torch makes 170,000 objects that stay. Python would look through all of them several times while they are made, now
    and then while the verb works, and once more at its end: together a quarter of the time that a sentence takes.

    This holds for the whole process, which is why only commands do it.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
