"""What a run learns from, in numbers: how much, how long, what was left out of it, and the longest lines."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from regard.errors import TooLongError, UserError
from regard.runs.task import Line, Run, Task
from regard.runs.tasks import TASKS
from regard.text.lines import read_lines, write_lines
from regard.text.tokenizer import TokenizerPair

NOTES = "prepared.txt"
"""What was said while text was prepared, beside what came of it."""

LONGEST = 5
"""So many of the longest lines are named."""

CANDIDATES = 500
"""So many lines with the most bytes are encoded to find those with the most tokens, of which there are no more."""


@dataclass(frozen=True)
class Side:
    """The tokens of the texts of one side, begin and end marks not counted."""

    tokens: int
    mean: float
    median: float
    high: float
    """99 of 100 texts have no more than so many."""
    longest: int

    @classmethod
    def of(cls, lengths: NDArray[np.int32]) -> Side:
        median, high = np.percentile(lengths, (50, 99))
        return cls(int(lengths.sum(dtype=np.int64)), float(lengths.mean()), median, high, int(lengths.max()))


@dataclass(frozen=True)
class LongLine:
    """A line and its number of tokens."""

    tokens: int
    origin: str
    """File and line."""

    def __str__(self) -> str:
        return f"{self.origin}: {self.tokens:,} tokens"


@dataclass(frozen=True)
class Overview:
    """What is learned from."""

    amount: str
    sides: Mapping[str, Side]
    notes: list[str]
    """What was said when it was prepared: what was left out, and why."""
    longest: list[LongLine]
    """Of all lines of the files, those that were left out too; the longest first."""


def prepare(run: Run) -> Task:
    """A run's task, its text prepared. What is said of that is also kept, for a plan that is made later.

    Raises:
        UserError: it cannot be; of texts that are too long for any batch the longest lines are named.
    """
    notes: list[str] = []

    def say(text: str) -> None:
        notes.append(text)
        write_lines(run.data / NOTES, notes)  # at once: with the last one it is all there, before the checksums
        run.say(text)

    try:
        task = TASKS[run.settings.task](replace(run, say=say))
    except TooLongError as error:
        lines = "; ".join(map(str, longest(run, run.settings.data.max_length)))
        raise UserError(f"{error} (data.max_length); the longest lines: {lines}") from None
    task.run = run
    return task


def overview(task: Task) -> Overview:
    """Look at a task's text."""
    path = task.run.data / NOTES
    notes = list(read_lines(path)) if path.exists() else []
    return Overview(task.amount, {name: Side.of(each) for name, each in task.lengths.items()}, notes, longest(task.run))


def longest(run: Run, most: int | None = None) -> list[LongLine]:
    """The longest lines of a run's training files, of those with no more than `most` tokens.

    None where there is no text, where it has been moved away since, or where the run has no tokenizer yet.
    """
    try:
        tokenizers = TokenizerPair.load(run.directory)
        return longest_lines(TASKS[run.settings.task].lines(run.corpus), tokenizers, most)
    except UserError:
        return []


def longest_lines(
    lines: Iterable[Line], tokenizers: TokenizerPair, most: int | None = None, count: int = LONGEST
) -> list[LongLine]:
    """The lines with the most tokens. A token has one byte or more, so only those with many bytes are encoded."""
    candidates = heapq.nlargest(CANDIDATES, lines, key=lambda line: len(line.text.encode()))
    found = []
    for side, tokenizer in (("source", tokenizers.source), ("target", tokenizers.target)):
        chosen = [line for line in candidates if line.side == side]
        encoded = tokenizer.encode([line.text for line in chosen])
        found += [LongLine(len(ids), line.origin) for line, ids in zip(chosen, encoded, strict=True)]
    fitting = [line for line in found if most is None or line.tokens <= most]
    return heapq.nlargest(count, fitting, key=lambda line: line.tokens)
