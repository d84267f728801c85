"""Does a translation that was killed write what one writes that was not? And does memory grow with the file?

Translates a file without a break, and then again with SIGKILL at random moments of all kinds: while the command starts,
in the middle of a window, while one is being saved, while the output is being written. Each time the same command goes
on; at the end the bytes are compared. With `--lines`, a file of so many lines is translated too, and one of a hundredth
and one of a tenth, for the peak of memory.

    python benchmarks/interrupted.py runs/mine test.en --kills 10 --seed 1
    python benchmarks/interrupted.py runs/mine test.en --kills 0 --lines 1000000
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

PATIENCE = 3600.0
KINDS = ("starting", "translating", "saving", "translating", "saving")


class Kill(NamedTuple):
    """A moment in words and as a test, and what to wait from there on, in seconds."""

    name: str
    come: Callable[[], bool]
    delay: float


class Result(NamedTuple):
    """When a command was killed, and how many lines were done then."""

    moment: str
    lines: int


class Job:
    """A command that translates a file, and where its journal stands."""

    def __init__(self, options: argparse.Namespace, source: Path, output: Path) -> None:
        words = ["translate", str(options.model), "--input", str(source), "--output", str(output), *options.options]
        self.command = [sys.executable, "-m", "regard", *words]
        self.output, self.journal = output, output.with_name(f".{output.name}.partial")

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command, stderr=subprocess.PIPE)

    def finish(self) -> tuple[float, int, bytes]:
        """Go on to the end: seconds, peak memory in bytes, and what was said."""
        started = time.monotonic()
        process = self.start()
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"the command did not end well ({status}):\n{said.decode()}")
        return time.monotonic() - started, usage.ru_maxrss * 1024, said

    def killed(self, kill: Kill) -> Result:
        process = self.start()
        deadline = time.monotonic() + PATIENCE
        while not kill.come() and process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"{kill.name}: the moment did not come")
            time.sleep(0.0002)
        time.sleep(kill.delay)
        process.kill()
        process.communicate()
        ended = "" if process.returncode == -signal.SIGKILL else f"; ended by itself before ({process.returncode})"
        return Result(kill.name + ended, self.done())

    def done(self) -> int:
        """Lines in the journal, looked up in a copy: the next command shall find what the kill left."""
        if not self.journal.exists():
            return 0
        with tempfile.TemporaryDirectory() as folder:
            for name in (self.journal.name, f"{self.journal.name}-journal"):
                if (self.journal.parent / name).exists():
                    shutil.copy(self.journal.parent / name, folder)
            connection = sqlite3.connect(Path(folder) / self.journal.name)
            try:
                (lines,) = connection.execute("SELECT coalesce(max(number), 0) FROM line").fetchone()
            except sqlite3.OperationalError:  # killed before there were tables
                lines = 0
            connection.close()
        return int(lines)

    def kills(self, number: int, seed: int) -> Iterator[Kill]:
        """Moments of all kinds in turn, the last one while the output is being written."""
        chance = random.Random(seed)
        for kind in islice(chain.from_iterable(KINDS for _ in count()), number - 1):
            if kind == "starting":
                yield Kill(kind, lambda: True, chance.uniform(0, 4))
            else:
                saved = self._changes_after(self.done())
                yield Kill(kind, saved, chance.uniform(0, 1) if kind == "translating" else chance.uniform(0, 0.02))
        if number:
            draft = self.journal.with_name(f"{self.journal.name}-output")
            yield Kill("writing the output", draft.exists, 0.0)

    def _changes_after(self, lines: int) -> Callable[[], bool]:
        """Whether a window is being saved: the file has grown by more than the tables that a new one is made of."""
        before = self.journal.stat().st_size if lines else 40_000
        return lambda: self.journal.exists() and self.journal.stat().st_size > before


def variations(lines: list[str], unlike: int) -> Iterator[str]:
    """So many different texts of the words of these: as they are, with their words turned by one, by two, and so on."""
    seen: set[str] = set()
    for turn in range(10_000):
        for line in lines:
            words = line.split()
            place = turn % max(1, len(words))
            text = " ".join([*words[place:], *words[:place], *(["and"] * (turn // max(1, len(words))))])
            if text not in seen:
                seen.add(text)
                yield text
            if len(seen) == unlike:
                return


def write(path: Path, lines: list[str], number: int, unlike: int) -> None:
    """So many lines, `unlike` of them different; the others stand anywhere after those that they are like."""
    different = list(variations(lines, unlike))
    chance = random.Random(0)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for place in range(number):
            new = place * len(different) // number
            again = place and new == (place - 1) * len(different) // number
            file.write(different[chance.randrange(new + 1) if again else new] + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path, help="text to make the files of, one sentence a line")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--windows", type=int, default=12, help="of 1,024 different texts, in the file that is killed")
    parser.add_argument("--lines", type=int, default=0, help="of the file that memory is measured on")
    parser.add_argument("--unlike", type=int, default=20_000, help="different ones among these")
    parser.add_argument("--options", type=str.split, default=[], help='for regard translate, as in "--executor torch"')
    options = parser.parse_args()
    lines = options.file.read_text(encoding="utf-8").split("\n")[:-1]
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="regard-interrupted-") as name:
        same = not options.kills or killing(console, options, Path(name), lines)
        if options.lines:
            measuring(console, options, Path(name), lines)
    sys.exit(not same)


def killing(console: Console, options: argparse.Namespace, folder: Path, lines: list[str]) -> bool:
    """Kill and go on, and compare."""
    source, whole = folder / "source", folder / "whole"
    unlike = options.windows * 1024
    write(source, lines, unlike * 5 // 4, unlike)
    seconds, _, _ = Job(options, source, whole).finish()
    console.print(f"unbroken: {unlike * 5 // 4:,} lines, {unlike:,} of them different, in {seconds:.0f} s")
    job = Job(options, source, folder / "broken")
    table = Table("", "killed while", "lines done")
    for number, kill in enumerate(job.kills(options.kills, options.seed), start=1):
        result = job.killed(kill)
        table.add_row(str(number), result.moment, f"{result.lines:,}")
        console.print(f"{number}. {result.moment}: {result.lines:,} lines done")
        if job.output.exists() and job.output.read_bytes() != whole.read_bytes():
            console.print("an output stands there that is another")
            return False
    _, _, said = job.finish()
    same = job.output.read_bytes() == whole.read_bytes()
    console.print(table)
    console.print(said.decode().splitlines()[0] if said else "")
    left = sorted(path.name for path in folder.iterdir() if path not in (source, whole, job.output))
    console.print(f"after {options.kills} kills: {'byte for byte the same' if same else 'ANOTHER OUTPUT'}")
    console.print(f"left behind: {', '.join(left) or 'nothing'}")
    return same and not left


def measuring(console: Console, options: argparse.Namespace, folder: Path, lines: list[str]) -> None:
    """The peak of memory for files of a hundredth of the lines, a tenth, and all."""
    table = Table("lines", "different", "seconds", "peak memory", "output", title="does memory grow?")
    for number in (options.lines // 100, options.lines // 10, options.lines):
        source, output = folder / "many", folder / "many.out"
        unlike = min(number, options.unlike)
        write(source, lines, number, unlike)
        seconds, peak, _ = Job(options, source, output).finish()
        with output.open("rb") as file:
            written = sum(1 for _ in file)
        table.add_row(f"{number:,}", f"{unlike:,}", f"{seconds:.0f}", f"{peak / 2**20:,.0f} MiB", f"{written:,} lines")
    console.print(table)


if __name__ == "__main__":
    main()
