"""Answering the lines of a file into a file: interrupted, the same command goes on where it was."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.pipelines import Pipeline, Translator
    from regard.pipelines.journal import Answer, Answerer


def two_files(source: Path | None, output: Path | None) -> tuple[Path, Path] | None:
    """Both, if one can be read again and the other appears as a whole, as a job with a journal needs it.

    What does not exist yet counts as a file.
    """
    if source is None or output is None or any(path.exists() and not path.is_file() for path in (source, output)):
        return None
    return source, output


@contextmanager
def journaled(
    source: Path,
    output: Path,
    lines: Iterable[str],
    answer: Answerer,
    job: Mapping[str, object],
    circumstances: Mapping[str, object],
    restart: bool,
) -> Iterator[Iterator[Answer]]:
    """Have all lines of `source` answered; give the answers, to be written in the block. See `pipelines.journal`.

    `answer` should warn of "SOURCE, line N", where N counts the texts that it was given; the line's own number is said.
    """
    from regard.cli.progress import progress
    from regard.pipelines.journal import journal
    from regard.text.lines import count_lines

    def answer_by_number(texts: list[str], numbers: list[int]) -> Iterable[Answer]:
        with told_by_number(str(source), numbers):
            return list(answer(texts, numbers))

    total = count_lines(source)
    with journal(output, job, circumstances, restart) as record:
        with progress("translating", total, record.lines) as show:
            for done in record.carry_on(lines, answer_by_number, str(source)):
                show(done)
        yield record.answers()


@contextmanager
def told_by_number(name: str, numbers: Sequence[int]) -> Iterator[None]:
    """What is said of "NAME, line 2" is said of the line that has the second of these numbers."""
    place = re.compile(rf"(?<={re.escape(name)}, line )\d+")

    def renumber(record: logging.LogRecord) -> bool:
        record.msg = place.sub(lambda found: str(numbers[int(found[0]) - 1]), record.getMessage())
        record.args = ()
        return True

    log = logging.getLogger("regard")
    log.addFilter(renumber)
    try:
        yield
    finally:
        log.removeFilter(renumber)


def executor_of(translator: Translator) -> str:
    """What computes, but for the kind of CPU, which is one of the circumstances."""
    return re.sub(r" \(.*?\)", "", translator.executor.about)


def circumstances(pipeline: Pipeline) -> dict[str, object]:
    """What beside model and options decides how numbers are rounded. How many threads share the work does not."""
    import torch

    from regard.version import __version__

    device = pipeline.device
    return {
        "regard": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
