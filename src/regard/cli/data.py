"""`regard data`: every step of preparing a corpus by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from regard.cli.progress import progress
from regard.cli.synthesis import back_translate, distill
from regard.data.corpus import CleaningReport, CleaningSettings, Pair
from regard.errors import UserError
from regard.text.tokenizer import TokenizerSettings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

    from regard.data.statistics import Side, Statistics

app = App(name="data", help="Prepare parallel text: fetch, clean, measure, learn a tokenizer, binarise, make more.")
app.command(back_translate)
app.command(distill)

CLEANING, TOKENIZER = CleaningSettings(), TokenizerSettings()


@app.command
def get(name: str, *, target: str, cache: Path | None = None) -> None:
    """Fetch a corpus by its name and print where its files are.

    Known is "ui-strings": interface texts of Home Assistant from English into some 60 languages (Apache-2.0).

    Example: `regard data get ui-strings --target de`

    Parameters
    ----------
    name
        Name of the corpus.
    target
        Target language, such as de, fr or zh-Hans.
    cache
        Folder to keep it in, instead of $REGARD_CACHE or the user's cache folder.
    """
    from regard.data import named

    corpus = named.get(name, target, cache)
    print(f"{corpus.name}, {corpus.source_language}-{corpus.target_language}: {corpus.licence}; {corpus.attribution}")
    for part in ("train", "dev", "test"):
        source, translation = getattr(corpus, part)
        print(f"{part:5}  --source {source} --target {translation}")


@app.command
def clean(
    *,
    source: Path,
    target: Path | None = None,
    out: Path,
    settings: Annotated[CleaningSettings, Parameter(name="*")] = CLEANING,
) -> None:
    """Drop the pairs that harm training, and say which and why.

    Words are separated by white space; in Chinese, Japanese, Thai, Lao, Khmer and Burmese each character counts.

    Example: `regard data clean --source train.en --target train.de --out clean`

    Parameters
    ----------
    source
        Source text, line by line; plain or gzip, UTF-8.
    target
        Target text, line by line. Without it, source holds two columns separated by a tab.
    out
        Folder for the clean files, which keep their names.
    """
    from regard.data.corpus import clean as cleaned
    from regard.data.corpus import open_pairs
    from regard.text.lines import atomic_write, encode_line

    inputs = [source] if target is None else [source, target]
    outputs = [out / path.name.removesuffix(".gz") for path in inputs]
    if any(path.exists() and path.samefile(given) for path in outputs for given in inputs):
        raise UserError(f"--out {out}: would overwrite the input; name another folder")
    if len(set(outputs)) < len(outputs):
        raise UserError(f"--out {out}: source and target have the same name; rename one of them")
    _make(out)
    report = CleaningReport()
    with progress("cleaning") as show:
        pairs = cleaned(_watched(open_pairs(source, target), show), settings, report)
        if target is None:
            with atomic_write(outputs[0]) as file:
                file.writelines(encode_line("\t".join(pair)) for pair in pairs)
        else:
            with atomic_write(outputs[0]) as source_file, atomic_write(outputs[1]) as target_file:
                for pair in pairs:
                    source_file.write(encode_line(pair[0]))
                    target_file.write(encode_line(pair[1]))
    _print_cleaning(report)
    if not report.kept:
        raise UserError(f"no pair of {' and '.join(map(str, inputs))} is left; loosen the rules above")
    print("written:", *outputs)


@app.command
def stats(*, source: Path, target: Path | None = None) -> None:
    """Measure a corpus: sizes, lengths, length ratios, repeated, empty and suspicious pairs.

    Example: `regard data stats --source train.en --target train.de`

    Parameters
    ----------
    source
        Source text, line by line; plain or gzip, UTF-8.
    target
        Target text, line by line. Without it, source holds two columns separated by a tab.
    """
    from regard.data.corpus import open_pairs
    from regard.data.statistics import statistics

    with progress("measuring") as show:
        measured = statistics(_watched(open_pairs(source, target), show))
    _print_statistics(measured)


@app.command
def tokenizer(
    *,
    source: Path,
    target: Path | None = None,
    out: Path,
    settings: Annotated[TokenizerSettings, Parameter(name="*")] = TOKENIZER,
) -> None:
    """Learn the tokenizer of a corpus, or with --no-joint one for each side.

    Example: `regard data tokenizer --source train.en --target train.de --out tokenizer`

    Parameters
    ----------
    source
        Source text, line by line; plain or gzip, UTF-8.
    target
        Target text, line by line. Without it, source holds two columns separated by a tab.
    out
        Folder for tokenizer.json, or for tokenizer.source.json and tokenizer.target.json.
    """
    from regard.data.corpus import open_pairs
    from regard.data.learn import learn_tokenizers

    with progress("reading") as show:
        learned = learn_tokenizers(lambda: _watched(open_pairs(source, target), show), settings)
    _make(out)
    learned.save(out)
    sizes = dict.fromkeys((learned.source.size, learned.target.size))
    print(f"{out}: vocabulary of", " and ".join(f"{size:,}" for size in sizes))


@app.command
def binarise(
    *,
    source: Path,
    target: Path | None = None,
    tokenizer: Path,
    out: Path,
    processes: int = 1,
    max_length: int = 512,
) -> None:
    """Turn a corpus into an Arrow file of token ids, ready for training.

    Example: `regard data binarise --source train.en --target train.de --tokenizer tokenizer --out train.arrow`

    Parameters
    ----------
    source
        Source text, line by line; plain or gzip, UTF-8.
    target
        Target text, line by line. Without it, source holds two columns separated by a tab.
    tokenizer
        Folder of the tokenizer, as written by `regard data tokenizer`.
    out
        The file to write.
    processes
        Processes that share the work; one uses all cores of a small machine by itself.
    max_length
        Pairs with more tokens on a side are skipped and reported.
    """
    from regard.data import binarise as binarisation
    from regard.data.corpus import open_pairs
    from regard.text.tokenizer import TokenizerPair

    for option, value in (("--processes", processes), ("--max-length", max_length)):
        if value < 1:
            raise UserError(f"{option} {value}: should be 1 or more")
    with progress("binarising") as show:
        report = binarisation.binarise(
            open_pairs(source, target),
            TokenizerPair.load(tokenizer),
            out,
            processes=processes,
            max_length=max_length,
            progress=show,
        )
    print(f"{out}: {report}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be made a folder: {error.strerror}; name another") from None


def _watched(pairs: Iterable[Pair], show: Callable[[int], None]) -> Iterator[Pair]:
    for line, pair in enumerate(pairs, start=1):
        show(line)
        yield pair


def _print_cleaning(report: CleaningReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    print(f"{report.kept:,} of {report.read:,} pairs kept, {report.changed:,} of them with other white space")
    if not report.dropped:
        return
    table = Table("dropped", _right("pairs"), _right("first in line"), "source", "target")
    for reason, dropped in report.dropped.items():
        examples = (Text(text if len(text) < 100 else f"{text[:100]} ...") for text in (dropped.source, dropped.target))
        table.add_row(reason, f"{dropped.count:,}", f"{dropped.line:,}", *examples)
    Console().print(table)


def _print_statistics(measured: Statistics) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    print(f"{measured.pairs:,} pairs")
    numbers = ("words", "characters", "mean in a line", "median", "90%", "99%", "longest")
    sides = Table("", *map(_right, numbers))
    for name, side in (("source", measured.source), ("target", measured.target)):
        lengths = [*map(side.percentile, (50, 90, 99)), side.longest]
        sides.add_row(name, f"{side.words:,}", f"{side.characters:,}", f"{side.mean:.1f}", *map(str, lengths))
    console.print(sides)
    for name, side in (("source", measured.source), ("target", measured.target)):
        console.print(_histogram(f"words in a {name} line", _length_bins(side), console))
    console.print(_histogram("target words / source words", _ratio_bins(measured), console))
    for count, what in (
        (measured.duplicates, "stood before (drop: clean --deduplicate)"),
        (measured.empty, "have an empty side"),
        (measured.identical, "have the same text on both sides"),
        (measured.strange, "have control or private-use characters or U+FFFD: look at their encoding"),
    ):
        print(f"{count:>12,} pairs {what}")


def _right(header: str) -> Column:
    from rich.table import Column

    return Column(header, justify="right")


def _length_bins(side: Side, bins: int = 12) -> list[tuple[str, int]]:
    """About `bins` bins of equal width up to the 99th percentile, and one for what is longer."""
    top = side.percentile(99)
    width = max(-(-top // bins), 1)
    counts = [0] * (top // width + 2)
    for length, lines in side.lengths.items():
        counts[min(length // width, len(counts) - 1)] += lines
    labels = [f"{low}-{low + width - 1}" if width > 1 else f"{low}" for low in range(0, len(counts) * width, width)]
    labels[-1] = f"{(len(counts) - 1) * width} or more"
    return list(zip(labels, counts, strict=True))


def _ratio_bins(measured: Statistics) -> list[tuple[str, int]]:
    from regard.data.statistics import RATIO_EDGES

    edges = [str(edge) for edge in RATIO_EDGES]
    inner = [f"{low} to {high}" for low, high in pairwise(edges)]
    return list(zip([f"below {edges[0]}", *inner, f"{edges[-1]} or more"], measured.ratios, strict=True))


def _histogram(title: str, bins: list[tuple[str, int]], console: Console) -> Table:
    from rich.table import Table

    table = Table(title, _right("pairs"), "", box=None)
    stroke = "█" if console.encoding.startswith("utf") else "#"
    most = max(count for _, count in bins) or 1
    for label, count in bins:
        table.add_row(label, f"{count:,}", stroke * -(-40 * count // most))
    return table
