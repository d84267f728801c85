"""How far a command is, shown on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic


@contextmanager
def progress(what: str, total: int | None = None, before: int = 0) -> Iterator[Callable[[int], None]]:
    """A function to tell how many lines are done: a changing line on a terminal, else a plain one now and then.

    Args:
        total: lines that there are, where that is known: then it is said how long the rest will take.
        before: so many of them were done earlier.
    """
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
            text = f"{what}: {_so_far(lines, total, (lines - before) / (now - started))}"
            if console.is_terminal:
                status.update(text)
            else:
                console.print(text, highlight=False)

        yield show


def _so_far(lines: int, total: int | None, rate: float) -> str:
    if total is None:
        return f"{lines:,} lines, {rate:,.0f} a second"
    left = f", {timedelta(seconds=round((total - lines) / rate))} left" if rate > 0 else ""
    return f"{lines:,} of {total:,} lines, {rate:,.0f} a second{left}"
