"""From the text that a run names to tokenizers and binarised pairs in its directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.data.binarise import binarise
from regard.data.corpus import CleaningReport, Pair, clean, open_pairs
from regard.data.dataset import PairDataset
from regard.data.learn import learn_tokenizers
from regard.data.named import get
from regard.errors import UserError
from regard.model.store import read_json
from regard.runs.settings import DataSettings, Files, RunSettings
from regard.text.lines import read_lines, write_lines
from regard.text.tokenizer import TokenizerPair
from regard.training.checkpoint import checkpoints

Say = Callable[[str], None]
"""Tells the user what is going on."""

CHECKSUMS = "checksums.json"

HELD_OUT = 1000
"""The most pairs that are held out for validation when no dev files are given, and at most a twentieth of all."""


@dataclass(frozen=True)
class Corpus:
    """The text of a run."""

    train: Files
    dev: Files | None
    test: Files | None
    description: str
    """What the model card says of it: name, origin, licence, attribution."""


@dataclass(frozen=True)
class Prepared:
    """What training and validation read."""

    tokenizers: TokenizerPair
    train: PairDataset
    dev: PairDataset
    dev_source: list[str]
    dev_target: list[str]


def find_corpus(data: DataSettings) -> Corpus:
    """The files of a run; a named corpus is fetched if it is not there yet."""
    if data.train is not None:
        sides = [data.train.source.name, *([data.train.target.name] if data.train.target else [])]
        return Corpus(data.train, data.dev, data.test, f"Files given by the user: {' and '.join(sides)}.")
    if data.corpus is None or data.target_language is None:
        raise UserError("data: names neither a corpus nor files to train on")
    named = get(data.corpus, data.target_language)
    train, dev, test = (Files(source=source, target=target) for source, target in (named.train, named.dev, named.test))
    description = (
        f"{named.name}, {named.source_language} to {named.target_language}. Origin: {named.origin}. "
        f"Licence: {named.licence}. {named.attribution}."
    )
    return Corpus(train, dev, test, description)


def count_pairs(files: Files) -> int:
    """The number of pairs; reads all, so that a bad line is known before anything is begun."""
    return sum(1 for _ in open_pairs(files.source, files.target))


def check_test(corpus: Corpus) -> None:
    """Read the test text, which is needed at the very end: a mistake in it is known before anything is begun."""
    if corpus.test is not None and not count_pairs(corpus.test):
        raise UserError(f"{corpus.test.source}: holds no line to test on")


def begin_anew(directory: Path) -> None:
    """Let the next `prepare` do everything again."""
    (directory / "data" / CHECKSUMS).unlink(missing_ok=True)


def prepare(directory: Path, settings: RunSettings, corpus: Corpus, say: Say) -> Prepared:
    """Learn the tokenizers and binarise, unless the directory has it all from an earlier sitting."""
    data = directory / "data"
    train_path, dev_path = data / "train.arrow", data / "dev.arrow"
    dev_files = Files(source=data / "dev.source.txt", target=data / "dev.target.txt")
    # The checksums of the text are written last: where they are, all is.
    if not (data / CHECKSUMS).exists():
        if checkpoints(directory / "checkpoints"):
            raise UserError(
                f"{data}: is gone or incomplete, and the checkpoints beside it were learned from what it held; "
                "put it back, or choose another --out"
            )
        data.mkdir(parents=True, exist_ok=True)
        sums = checksums(corpus)
        _write_dev(corpus, settings, dev_files, say)
        tokenizers = learn_tokenizers(lambda: _train_pairs(corpus, settings, CleaningReport()), settings.tokenizer)
        tokenizers.save(directory)
        say(_vocabulary(tokenizers))
        cleaning = CleaningReport()
        report = binarise(
            _train_pairs(corpus, settings, cleaning), tokenizers, train_path, max_length=settings.data.max_length
        )
        for reason, dropped in cleaning.dropped.items():
            say(f"left out of training: {dropped.count:,} pairs, {reason} (first in line {dropped.line:,})")
        say(f"train: {report}")
        reach = settings.model.max_length - 1
        report = binarise(open_pairs(dev_files.source, dev_files.target), tokenizers, dev_path, max_length=reach)
        say(f"dev: {report}")
        write_lines(data / CHECKSUMS, [json.dumps(sums)])
    _refuse_changed_text(data, corpus)
    tokenizers = TokenizerPair.load(directory)
    return Prepared(
        tokenizers,
        PairDataset.open(train_path, tokenizers),
        PairDataset.open(dev_path, tokenizers),
        list(read_lines(dev_files.source)),
        list(read_lines(dev_files.target or dev_files.source)),
    )


def checksums(corpus: Corpus) -> dict[str, str]:
    """SHA-256 of each file of training and validation text that is there."""
    files = [corpus.train, *([corpus.dev] if corpus.dev else [])]
    paths = [path for each in files for path in (each.source, each.target) if path is not None and path.is_file()]
    sums = {}
    for path in paths:
        with path.open("rb") as file:
            sums[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums


def _refuse_changed_text(data: Path, corpus: Corpus) -> None:
    """A run goes on with the text that it began with; where that has been moved away, the binarised copy is enough."""
    before = read_json(data / CHECKSUMS)
    for path, checksum in checksums(corpus).items():
        if before.get(path, checksum) != checksum:
            raise UserError(f"{path}: has changed since the run in {data.parent} began; choose another --out")


def _train_pairs(corpus: Corpus, settings: RunSettings, report: CleaningReport) -> Iterator[Pair]:
    pairs = clean(open_pairs(corpus.train.source, corpus.train.target), settings.data.cleaning, report)
    if corpus.dev is not None:
        return pairs
    held_out = _held_out(corpus.train)
    return (pair for pair in pairs if not held_out(pair))


def _write_dev(corpus: Corpus, settings: RunSettings, files: Files, say: Say) -> None:
    """Write the text of validation into the run's directory, pairs with an empty side left out."""
    origin = corpus.dev or corpus.train
    pairs = open_pairs(origin.source, origin.target)
    if corpus.dev is None:
        held_out = _held_out(corpus.train)
        pairs = filter(held_out, clean(pairs, settings.data.cleaning, CleaningReport()))
    kept = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
    if not kept:
        raise UserError(f"{origin.source}: has no pair for validation; give more text, or dev files")
    if corpus.dev is None:
        say(f"no dev files given: {len(kept):,} pairs of the training text are held out for validation")
    write_lines(files.source, (source for source, _ in kept))
    write_lines(files.target or files.source, (target for _, target in kept))


def _held_out(train: Files) -> Callable[[Pair], bool]:
    """A fixed choice of pairs by a hash of the source text, so that equal sources stay together."""
    every = max(20, count_pairs(train) // HELD_OUT)

    def chosen(pair: Pair) -> bool:
        return int.from_bytes(hashlib.sha256(pair[0].encode()).digest()[:8], "big") % every == 0

    return chosen


def _vocabulary(tokenizers: TokenizerPair) -> str:
    if tokenizers.joint:
        return f"vocabulary: {tokenizers.source.size:,} pieces for both sides"
    return f"vocabularies: {tokenizers.source.size:,} source and {tokenizers.target.size:,} target pieces"
