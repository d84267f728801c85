"""The part of preparation that all tasks share: once and for all, from text that does not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from regard.data.corpus import CleaningReport
from regard.data.named import NamedCorpus
from regard.errors import UserError
from regard.runs.settings import Files, Mixed
from regard.runs.task import Corpus, Run
from regard.settings import read_json
from regard.text.lines import write_lines
from regard.training.checkpoint import checkpoints

CHECKSUMS = "checksums.json"

HELD_OUT = 1000
"""The most lines that are held out for validation when no dev files are given, and at most a twentieth of all."""


def once(run: Run, prepare: Callable[[], None]) -> None:
    """Let `prepare` fill the run's data folder, unless it has it all from an earlier sitting.

    Raises:
        UserError: the text has changed since, or what the run's checkpoints learned from is gone.
    """
    # The checksums of the text are written last: where they are, all is.
    if not (run.data / CHECKSUMS).exists():
        if checkpoints(run.directory / "checkpoints"):
            raise UserError(
                f"{run.data}: is gone or incomplete, and the checkpoints beside it were learned from what it held; "
                "put it back, or choose another --out"
            )
        run.data.mkdir(parents=True, exist_ok=True)
        sums = checksums(run.corpus)
        prepare()
        write_lines(run.data / CHECKSUMS, [json.dumps(sums)])
    _refuse_changed_text(run)


def begin_anew(directory: Path) -> None:
    """Let the next preparation do everything again."""
    (directory / "data" / CHECKSUMS).unlink(missing_ok=True)


def checksums(corpus: Corpus) -> dict[str, str]:
    """SHA-256 of each file of training and validation text that is there."""
    files = [*corpus.sources, *([corpus.dev] if corpus.dev else [])]
    paths = [path for each in files for path in (each.source, each.target) if path is not None and path.is_file()]
    sums = {}
    for path in paths:
        with path.open("rb") as file:
            sums[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def _refuse_changed_text(run: Run) -> None:
    """A run goes on with the text that it began with; where that has been moved away, the binarised copy is enough."""
    before = read_json(run.data / CHECKSUMS)
    for path, checksum in checksums(run.corpus).items():
        if before.get(path, checksum) != checksum:
            raise UserError(f"{path}: has changed since the run in {run.directory} began; choose another --out")


def held_out(count: int) -> Callable[[str], bool]:
    """A fixed choice among so many texts for validation, by a hash: equal texts stay together."""
    every = max(20, count // HELD_OUT)

    def chosen(text: str) -> bool:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % every == 0

    return chosen


def say_left_out(run: Run, report: CleaningReport) -> None:
    """Nothing is left out of training silently."""
    for reason, dropped in report.dropped.items():
        run.say(f"left out of training: {dropped.count:,} pairs, {reason} (first in line {dropped.line:,})")


def credited(named: NamedCorpus, languages: str = "") -> str:
    """What a model card says of a named corpus."""
    return f"{named.name}{languages}. Origin: {named.origin}. Licence: {named.licence}. {named.attribution}."


def described(files: Files) -> str:
    """What a model card says of files without a name."""
    sides = [files.source.name, *([files.target.name] if files.target else [])]
    return f"Files given by the user: {' and '.join(sides)}."


def mixed_in(mix: Sequence[Mixed]) -> str:
    """What a model card says of further text to train on."""
    parts = [f"{each.label} (weight {each.weight:g}{each.marked})" for each in mix]
    return f" Mixed in: {', '.join(parts)}." if parts else ""


def shown(count: int, wanted: int) -> list[int]:
    """Which of `count` samples are shown: the same ones each time, so that progress shows."""
    wanted = min(count, wanted)
    return [(2 * part + 1) * count // (2 * wanted) for part in range(wanted)]
