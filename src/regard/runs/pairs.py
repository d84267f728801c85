"""The pairs of a translation run: from the files of its corpus to batches, prepared once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import chain, compress
from pathlib import Path

from regard.data.aligned import learned_links, links_of_tokens, open_links, write_links
from regard.data.alignment import Link, parse_pharaoh
from regard.data.arrow import Lists
from regard.data.batches import Batches, BatchSettings
from regard.data.binarise import binarise
from regard.data.corpus import CleaningReport, Pair, clean, open_pairs
from regard.data.dataset import PairDataset
from regard.data.encoding import CHUNK_ROWS, Encoder, in_chunks
from regard.data.learn import extend_tokenizers, learn_tokenizers, tag_sources
from regard.data.resampled import ResampledPairs, refuse_unfit
from regard.errors import UserError
from regard.runs.initial import initial_tokenizers
from regard.runs.prepare import held_out, once, say_left_out
from regard.runs.settings import Files, Mixed
from regard.runs.task import Run
from regard.text.lines import read_lines, write_lines
from regard.text.tokenizer import TokenizerPair

LINKS = "train.links.arrow"


class Pairs:
    """What a run learns from and validates on."""

    def __init__(self, run: Run) -> None:
        """Clean, divide, tokenise and binarise the text of a run, unless an earlier sitting did."""
        self._run = run
        self._dev_text = Files(source=run.data / "dev.source.txt", target=run.data / "dev.target.txt")
        once(run, self._prepare)
        self.tokenizers = TokenizerPair.load(run.directory)
        parts = [PairDataset.open(path, self.tokenizers) for path in map(self._path, range(len(run.corpus.sources)))]
        self.train = PairDataset.joined(parts)
        """The pairs to train on, those of one source after the other."""
        self.dev = PairDataset.open(run.data / "dev.arrow", self.tokenizers)

    def train_batches(self) -> Batches:
        """The pairs to train on, each as often as the weight of its source says."""
        settings = self._run.settings
        weights = [source.weight for source in self._run.corpus.sources]
        links = None if settings.training.alignment is None else self._links()
        return Batches(self._regularised(), settings.batches, settings.training.seed, weights=weights, links=links)

    def dev_batches(self) -> Batches:
        """The pairs to validate on, the longest too: nothing is left out."""
        return Batches(self.dev, _wide_enough(self._run.settings.batches, self.dev))

    def dev_lines(self) -> Iterator[Pair]:
        """The same as text."""
        return open_pairs(self._dev_text.source, self._dev_text.target)

    def _path(self, source: int) -> Path:
        """Where the ids of a source are."""
        return self._run.data / ("train.arrow" if source == 0 else f"mix-{source}.arrow")

    def _links(self) -> Lists:
        """What stands for what in the pairs to train on; learned when it is first asked for."""
        path, files = self._run.data / LINKS, self._run.settings.data.train
        if not path.exists():
            given = None if files is None else files.alignments
            first = 0 if given is None else len(self.train.parts[0])
            learned = learned_links(self.train, self.tokenizers, first)
            count = write_links(path, learned if given is None else chain(self._given_links(given), learned))
            origin = "learned from the pairs" if given is None else f"from {given.name}"
            self._run.say(f"alignments: {count:,} links of tokens, {origin}")
        return open_links(path, self.train)

    def _given_links(self, path: Path) -> Iterator[list[Link]]:
        """The links of a file for those of the pairs of `data.train` that are trained on."""
        source, line = self._run.corpus.sources[0], (0, "")

        def remembered() -> Iterator[Pair]:
            nonlocal line
            lines = enumerate(read_lines(path), start=1)
            for pair in open_pairs(source.source, source.target):
                line = next(lines, (0, ""))
                if line[0] == 0:
                    raise UserError(f"{path}: has fewer lines than {source.source}: each pair needs its line")
                yield pair
            if next(lines, None) is not None:
                raise UserError(f"{path}: has more lines than {source.source}: each line is for one pair")

        sides = self.tokenizers.source, self.tokenizers.target
        encoder = Encoder(("source", "target"), sides, self._run.settings.data.max_length)
        # What is kept is given out before the next pair is read: the line is that of the pair.
        kept = ((pair, line) for pair in self._kept(remembered(), CleaningReport()))
        for chunk in in_chunks(kept, CHUNK_ROWS):
            trained = encoder.keeps([pair for pair, _ in chunk])
            for pair, (number, text) in compress(chunk, trained):
                origin = f"{path}, line {number}"
                yield links_of_tokens(self.tokenizers, pair, parse_pharaoh(text, origin).possible, origin)

    def _regularised(self) -> PairDataset:
        """The pairs to train on, segmented anew in each epoch if the settings say so."""
        settings, around = self._run.settings, self.tokenizers
        dropout = settings.data.subword_dropout
        if not dropout.any:
            return self.train
        frame = max(len(around.source_begin + around.source_end), len(around.target_begin))
        longest = min(settings.data.max_length, settings.batches.tokens - frame)
        return ResampledPairs(self.train, dropout, settings.training.seed, longest)

    def _prepare(self) -> None:
        """Learn the tokenizers and binarise."""
        run, settings = self._run, self._run.settings
        (run.data / LINKS).unlink(missing_ok=True)
        self._write_dev()
        tokenizers = self._make_tokenizers()
        refuse_unfit(tokenizers, settings.data.subword_dropout)
        tokenizers.save(run.directory)
        run.say(_vocabulary(tokenizers))
        for number, source in enumerate(run.corpus.sources):
            cleaning = CleaningReport()
            pairs, path = self._train_pairs(source, cleaning), self._path(number)
            report = binarise(pairs, tokenizers, path, max_length=settings.data.max_length, tag=source.tag)
            say_left_out(run, cleaning)
            name = "train" if number == 0 else f"mixed in, {source.label}"
            run.say(f"{name}: {report}{_share(source, report.kept) if run.corpus.mix else ''}")
        reach = min(settings.model.max_length, settings.model.source_reach)
        report = binarise(self.dev_lines(), tokenizers, run.data / "dev.arrow", max_length=reach - 1)
        run.say(f"dev: {report}")

    def _make_tokenizers(self) -> TokenizerPair:
        settings, sources = self._run.settings, self._run.corpus.sources

        def pairs() -> Iterator[Pair]:
            for source in sources:
                yield from self._train_pairs(source, CleaningReport())

        tokenizers = initial_tokenizers(settings) or learn_tokenizers(pairs, settings.tokenizer)
        if settings.extend_vocabulary is not None:
            new = partial(self._train_pairs, sources[0], CleaningReport())
            tokenizers = extend_tokenizers(new, tokenizers, settings.extend_vocabulary)
        tagged = tag_sources(tokenizers, [source.tag for source in sources if source.tag is not None])
        if settings.adapters is not None and tagged.source.size > tokenizers.source.size:
            raise UserError(
                "data.mix: a tag that the initial model does not know is learned by no adapter; leave it out"
            )
        return tagged

    def _train_pairs(self, source: Mixed, report: CleaningReport) -> Iterator[Pair]:
        return self._kept(open_pairs(source.source, source.target), report)

    def _kept(self, pairs: Iterable[Pair], report: CleaningReport) -> Iterator[Pair]:
        """Those that are clean and not held out for validation."""
        pairs = clean(pairs, self._run.settings.data.cleaning, report)
        if self._run.corpus.dev is not None:
            return pairs
        return (pair for pair in pairs if not self._held_out(pair[0]))

    @cached_property
    def _held_out(self) -> Callable[[str], bool]:
        """Whether a text to train on is for validation, where there are no dev files."""
        return held_out(count(self._run.corpus.train))

    def _write_dev(self) -> None:
        """Write the text of validation into the run's directory, pairs with an empty side left out."""
        corpus = self._run.corpus
        origin = corpus.dev or corpus.train
        pairs = open_pairs(origin.source, origin.target)
        if corpus.dev is None:
            cleaned = clean(pairs, self._run.settings.data.cleaning, CleaningReport())
            pairs = (pair for pair in cleaned if self._held_out(pair[0]))
        kept = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
        if not kept:
            raise UserError(f"{origin.source}: has no pair for validation; give more text, or dev files")
        if corpus.dev is None:
            self._run.say(f"no dev files given: {len(kept):,} pairs of the training text are held out for validation")
        write_lines(self._dev_text.source, (source for source, _ in kept))
        write_lines(self._dev_text.target or self._dev_text.source, (target for _, target in kept))


def count(files: Files) -> int:
    """The number of pairs."""
    return sum(1 for _ in open_pairs(files.source, files.target))


def _share(source: Mixed, kept: int) -> str:
    """How a source takes part in an epoch."""
    return f"; weight {source.weight:g}: about {round(kept * source.weight):,} pairs an epoch{source.marked}"


def _wide_enough(settings: BatchSettings, dataset: PairDataset) -> BatchSettings:
    longest = int(max(dataset.source_lengths.max(), dataset.target_lengths.max())) + 8
    return settings.model_copy(update={"tokens": max(settings.tokens, longest)})


def _vocabulary(tokenizers: TokenizerPair) -> str:
    tags = "".join(f", the tag <{name}> included" for name in tokenizers.source.tags)
    if tokenizers.joint:
        return f"vocabulary: {tokenizers.source.size:,} pieces for both sides{tags}"
    return f"vocabularies: {tokenizers.source.size:,} source{tags} and {tokenizers.target.size:,} target pieces"
