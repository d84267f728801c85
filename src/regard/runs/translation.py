"""Translation: pairs of lines, an encoder-decoder, real translations of the validation text, scored and shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from regard.data.batches import Batch
from regard.data.corpus import open_pairs
from regard.data.named import get
from regard.data.shortlist import Shortlist, learn_shortlist
from regard.errors import UserError
from regard.evaluation.metrics import Score, corpus_scores
from regard.model import store
from regard.model.interface import SequenceToSequence
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator
from regard.runs.pairs import Pairs, count
from regard.runs.prepare import credited, described, mixed_in, shown
from regard.runs.settings import DataSettings, Files, RunSettings
from regard.runs.task import Corpus, Line, Run, Search, Task
from regard.search.engine import translate
from regard.search.executors import fastest
from regard.search.settings import SearchSettings
from regard.text.lines import one_line, write_lines
from regard.text.segment import primary
from regard.training.loss import LossSums, translation_loss

LINE = 64
"""Texts of so many tokens are no long ones, however short those were that a model learned from."""


class Translation(Task):
    """An encoder-decoder that translates line by line."""

    family = "encoder-decoder"
    counted = "pairs"
    metrics = ("bleu", "chrf", "exact", "edit", "loss")
    options = frozenset(
        {
            "data.source_language",
            "data.target_language",
            "data.cleaning",
            "data.max_length",
            "data.mix",
            "extend_vocabulary",
            "data.subword_dropout",
            "tokenizer",
            "tokenizer.joint",
            "model.encoder_layers",
            "model.decoder_layers",
            "model.source_max_length",
            "validation.sentences",
            "batches",
            "search",
            "metrics",
            "training.alignment",
        }
    )
    python = 'translate(["..."])'
    command = "regard translate MODEL 'some text'"

    @classmethod
    def corpus(cls, data: DataSettings) -> Corpus:
        found = cls._files(data)
        if found.test is not None and not count(found.test):
            raise UserError(f"{found.test.source}: holds no line to test on")
        return found

    @classmethod
    def _files(cls, data: DataSettings) -> Corpus:
        if data.train is not None:
            about = described(data.train) + mixed_in(data.mix)
            return Corpus(data.train, data.dev, data.test, about, data.mix)
        if data.corpus is None or data.target_language is None:
            raise UserError(f"data: the corpus {data.corpus} needs a target_language, such as de")
        named = get(data.corpus, data.target_language)
        train, dev, test = (
            Files(source=source, target=target) for source, target in (named.train, named.dev, named.test)
        )
        languages = f", {named.source_language} to {named.target_language}"
        return Corpus(train, dev, test, credited(named, languages) + mixed_in(data.mix), data.mix)

    @classmethod
    def size(cls, corpus: Corpus) -> int:
        """All pairs are read, so that a bad line is known before anything is begun."""
        return sum(map(count, corpus.sources))

    @classmethod
    def choices(cls, size: int) -> dict[str, Any]:
        """Small corpora get small pre-norm models, high rates and many small updates: on a CPU that wins
        (docs/decisions/004-defaults-by-size.md has the evidence).
        """
        if size < 75_000:
            steps = min(max(round(size * 0.2), 1_500), 6_000)
            return {
                "preset": "tiny",
                "model": {"dropout": 0.2},
                "batches": {"tokens": 2_000},
                "training": _schedule("linear", 0.006, 300)
                | {"optimizer": {"kind": "muon"}, "steps": steps, "clip_norm": 1.0},
                "validation": {"every": max(steps // 8, 1)},
            }
        if size < 1_000_000:
            steps = min(max(round(size / 12), 6_000), 20_000)
            return {
                "preset": "small",
                "batches": {"tokens": 4_096},
                "training": _schedule("linear", 0.006, 500)
                | {"optimizer": {"kind": "muon"}, "steps": steps, "clip_norm": 1.0},
                "validation": {"every": steps // 20, "patience": 8},
            }
        return {
            "preset": "paper-base",
            "batches": {"tokens": 4_096},
            "training": {"schedule": {"kind": "paper", "warmup_steps": 4_000}, "accumulate": 6, "steps": 100_000},
            "validation": {"every": 1_000, "patience": 10},
        }

    @classmethod
    def update(cls, settings: RunSettings) -> str:
        return f"{settings.batches.tokens * settings.training.accumulate:,} tokens"

    @classmethod
    def mistake(cls, settings: RunSettings) -> str | None:
        data, metric = settings.data, settings.validation.metric
        if data.corpus is not None and data.target_language is None:
            return f"data: the corpus {data.corpus} needs a target_language, such as de"
        for bound, reach in (
            ("max_length", settings.model.max_length),
            ("source_max_length", settings.model.source_reach),
        ):
            if data.max_length >= reach:
                return f"data.max_length = {data.max_length} needs a model.{bound} above it, not {reach}"
        if settings.model.tie == "all" and not settings.tokenizer.joint:
            return "separate vocabularies (tokenizer.joint: false) need model.tie: decoder or none"
        if metric != "loss" and settings.validation.sentences == 0:
            return f"validation.metric: {metric} needs validation.sentences above 0"
        if metric not in ("loss", *settings.metrics.metrics):
            return f"validation.metric: {metric} needs that name in metrics.metrics"
        return _nothing_to_drop(settings) or _nowhere_to_align(settings) or super().mistake(settings)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        settings = run.settings
        prepared = Pairs(run)
        self.tokenizers, self.pairs, self.dev_pairs = prepared.tokenizers, prepared.train, prepared.dev
        self._batches = self.train = prepared.train_batches()
        self.dev = prepared.dev_batches()
        pairs = list(prepared.dev_lines())[: settings.validation.sentences]
        self.sources, self.references = [source for source, _ in pairs], [target for _, target in pairs]
        self.scores = settings.metrics
        if self.scores.language is None:
            self.scores = self.scores.model_copy(update={"language": settings.data.target_language})
        corpus_scores(["a"], [["a"]], self.scores)  # a package that a score lacks is missed now, not after a while

    @property
    def amount(self) -> str:
        pairs = sum(self._batches.mixture.counts)
        return f"{pairs:,} pairs" + f" (by weight, from {len(self.run.corpus.sources)} sources)" * bool(
            self.run.corpus.mix
        )

    @property
    def lengths(self) -> Mapping[str, NDArray[np.int32]]:
        return {"source": self.pairs.source_lengths, "target": self.pairs.target_lengths}

    @classmethod
    def lines(cls, corpus: Corpus) -> Iterator[Line]:
        for files in corpus.sources:
            for number, (source, target) in enumerate(open_pairs(files.source, files.target), start=1):
                yield Line(f"{files.source}, line {number}", source, "source")
                yield Line(f"{files.target or files.source}, line {number}", target, "target")

    def searches(self, part: Literal["dev", "test"]) -> Search | None:
        search, files = self.run.settings.search, self.run.corpus.test
        if part == "dev":
            sources, references = self.sources, self.references
            search = search.model_copy(update={"beam": 1, "nbest": 1})
        elif files is not None:
            pairs = list(open_pairs(files.source, files.target))
            sources, references = [source for source, _ in pairs], [target for _, target in pairs]
        else:
            return None
        return Search(sources, references, search, lambda outputs: corpus_scores(outputs, [references], self.scores))

    def model(self) -> store.ModelConfig:
        sizes = store.Vocabulary(source=self.tokenizers.source.size, target=self.tokenizers.target.size)
        return store.ModelConfig(family="encoder-decoder", vocabulary=sizes, model=self.run.settings.model)

    def loss(self, model: EncoderDecoder, batch: Batch) -> LossSums:
        training = self.run.settings.training
        return translation_loss(model, batch, training.label_smoothing, training.r_drop, training.alignment)

    def measure(self, model: nn.Module, show: bool = False) -> dict[str, float]:
        """The scores of validation text, translated by greedy search, by metric."""
        if not self.sources:
            return {}
        greedy = self.run.settings.search.model_copy(update={"beam": 1, "nbest": 1})
        outputs, scores = self._score(model, self.sources, self.references, greedy)
        if show:
            self._show(self.sources, outputs, self.references)
        return {name: score.value for name, score in zip(dict.fromkeys(self.scores.metrics), scores, strict=True)}

    def test(self, model: nn.Module) -> list[Score]:
        """Translate the test text into `test.txt` and score it, just as who has the model will."""
        files = self.run.corpus.test
        if files is None:
            return []
        pairs = list(open_pairs(files.source, files.target))
        sources, references = [source for source, _ in pairs], [target for _, target in pairs]
        inner = store.unwrap(model)
        if isinstance(inner, EncoderDecoder):
            outputs = [one_line(text) for text in self.pipeline(inner).translate(sources)]
            scores = corpus_scores(outputs, [references], self.scores)
        else:
            outputs, scores = self._score(model, sources, references, self.run.settings.search)
        write_lines(self.run.directory / "test.txt", outputs)
        self._show(sources, outputs, references)
        return scores

    @cached_property
    def _shortlist(self) -> Shortlist:
        return learn_shortlist(self.pairs, self.tokenizers, self.run.say)

    def _search(self, languages: store.Languages) -> SearchSettings:
        """How the model is to search. A translator does not know texts longer than those that it learned from."""
        search = self.run.settings.search
        source, target = languages.source, languages.target
        if search.split_tokens is not None or not source or not target or primary(source) == primary(target):
            return search
        longest = int(self.pairs.source_lengths.max(initial=0))
        return search.model_copy(update={"split_tokens": max(LINE, longest)})

    def pipeline(self, model: nn.Module) -> Translator:
        data = self.run.settings.data
        languages = store.Languages(source=data.source_language, target=data.target_language)
        assert isinstance(model, EncoderDecoder)
        settings, guided = self.run.settings, self.run.settings.training.alignment
        search = self._search(languages)
        translator = Translator(model, self.tokenizers, search, languages=languages, shortlist=self._shortlist)
        translator.alignment = None if guided is None else guided.among(settings.model.decoder_layers)
        return translator

    @property
    def title(self) -> str:
        data = self.run.settings.data
        return f"Transformer, {data.source_language or 'source'} → {data.target_language or 'target'}"

    def _score(
        self, model: nn.Module, sources: list[str], references: list[str], search: SearchSettings
    ) -> tuple[list[str], list[Score]]:
        """Translations of `sources` and their scores against `references`."""
        inner = store.unwrap(model)
        assert isinstance(inner, SequenceToSequence)
        executor, _ = fastest(inner, precision="float32", lasting=False)
        found = translate(executor, self.tokenizers, sources, search, name="validation")
        outputs = [one_line(each.best.text) for each in found]
        return outputs, corpus_scores(outputs, [references], self.scores)

    def _show(self, sources: list[str], outputs: list[str], references: list[str]) -> None:
        for index in shown(len(sources), self.run.settings.validation.samples):
            self.run.say(f"  {sources[index]}\n  → {outputs[index]}\n  = {references[index]}\n")


def _nothing_to_drop(settings: RunSettings) -> str | None:
    """Why merges cannot be left out, if they are to be."""
    kind = settings.tokenizer.kind
    if not settings.data.subword_dropout.any or settings.initial is not None or kind == "bpe":
        return None
    return f"data.subword_dropout leaves out merges: it needs tokenizer.kind: bpe, not {kind}"


def _nowhere_to_align(settings: RunSettings) -> str | None:
    """Why no head can learn to align, if one is to."""
    guided, model = settings.training.alignment, settings.model
    if guided is None:
        return None
    if settings.data.subword_dropout.any:
        return "training.alignment: knows text as it is always cut; leave out data.subword_dropout"
    place = guided.among(model.decoder_layers)
    for name, number, there in (("layer", place.layer, model.decoder_layers), ("head", guided.head, model.heads)):
        if number >= there:
            return f"training.alignment.{name} = {number}: the decoder has {there} of them, counted from 0"
    return None


def _schedule(kind: str, peak_rate: float, warmup_steps: int) -> dict[str, Any]:
    return {"schedule": {"kind": kind, "peak_rate": peak_rate, "warmup_steps": warmup_steps}}
