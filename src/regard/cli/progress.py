"""How far a command is, shown on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic


@contextmanager
def progress(what: str) -> Iterator[Callable[[int], None]]:
    """A function to tell how many lines are done: a changing line on a terminal, else a plain one now and then."""
    from rich.console import Console

    console = Console(stderr=True)
    pause = 0.2 if console.is_terminal else 10.0
    started = shown = monotonic()

    with console.status(f"{what} ...") as status:

        def show(lines: int) -> None:
            nonlocal shown
            now = monotonic()
            if now - shown < pause:
                return
            shown = now
            text = f"{what}: {lines:,} lines, {lines / (now - started):,.0f} a second"
            if console.is_terminal:
                status.update(text)
            else:
                console.print(text, highlight=False)

        yield show
