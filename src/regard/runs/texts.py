"""Corpora of one text, from which a language model learns: the part that causal and masked ones have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import nn

from regard.data.binarise import binarise_texts
from regard.data.corpus import count_words
from regard.data.feed import AnyBatch, Feed
from regard.data.learn import learn_tokenizer
from regard.data.named import get
from regard.data.tokens import TokenDataset, read_documents
from regard.errors import UserError
from regard.evaluation.metrics import Score
from regard.runs.initial import initial_tokenizers
from regard.runs.prepare import credited, described, held_out, once
from regard.runs.settings import DataSettings, Files
from regard.runs.task import Corpus, Line, Run, Task
from regard.text.extension import extended
from regard.text.lines import read_lines, write_lines
from regard.text.tokenizer import TokenizerPair
from regard.training.loss import perplexity
from regard.training.validation import total_nll

VALIDATION_SHARE = 0.1
"""How much of one long text is held out for validation, at its end, when no dev file is given."""


class TextTask(Task):
    """A language model of either kind: documents in, nothing beside them."""

    options = frozenset({"data.documents", "tokenizer", "extend_vocabulary"})
    counted = "words"
    lone_source = "a language model learns from one text"

    @classmethod
    def corpus(cls, data: DataSettings) -> Corpus:
        found = cls._files(data)
        if found.test is not None and not any(line.strip() for line in read_lines(found.test.source)):
            raise UserError(f"{found.test.source}: holds no line to test on")
        return found

    @classmethod
    def _files(cls, data: DataSettings) -> Corpus:
        if data.train is not None:
            return Corpus(data.train, data.dev, data.test, described(data.train))
        assert data.corpus is not None
        named = get(data.corpus, "de")  # whose English side is read
        train, dev, test = (Files(source=source) for source, _ in (named.train, named.dev, named.test))
        return Corpus(train, dev, test, credited(named, f", {named.source_language}"))

    @classmethod
    def size(cls, corpus: Corpus) -> int:
        """All words are read, so that a bad line is known before anything is begun."""
        return sum(count_words(line) for line in read_lines(corpus.train.source))

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        once(run, self._prepare)
        self.tokenizers = TokenizerPair.load(run.directory)
        self.texts = self.open("train")
        self.dev_texts = self.open("dev")

    def open(self, part: str) -> TokenDataset:
        """The binarised documents of a part of the corpus."""
        return TokenDataset.open(self.run.data / f"{part}.arrow", self.tokenizers.source)

    @property
    def amount(self) -> str:
        return f"{int(self.texts.lengths.sum()):,} tokens in {len(self.texts):,} documents"

    @property
    def lengths(self) -> Mapping[str, NDArray[np.int32]]:
        return {"source": self.texts.lengths}

    @classmethod
    def lines(cls, corpus: Corpus) -> Iterator[Line]:
        path = corpus.train.source
        return (Line(f"{path}, line {number}", line, "source") for number, line in enumerate(read_lines(path), start=1))

    def perplexity(self, model: nn.Module, batches: Feed[AnyBatch], how: str) -> list[Score]:
        """exp of the mean negative log-likelihood over all batches."""
        nll, tokens = total_nll(self.loss, model, batches, next(model.parameters()).device)
        return [Score("perplexity", perplexity(nll, tokens), f"tokens:{tokens}|{how}")]

    def _prepare(self) -> None:
        """Hold text out for validation if need be, learn the tokenizer and binarise."""
        run, settings = self.run, self.run.settings
        if run.corpus.dev is None:
            self._hold_out()
        tokenizers = initial_tokenizers(settings)
        if tokenizers is None:
            tokenizer = learn_tokenizer(lambda: self._documents("train"), settings.tokenizer)
            tokenizers = TokenizerPair(tokenizer, tokenizer)
        elif settings.extend_vocabulary is not None:
            tokenizer = extended(tokenizers.source, self._documents("train"), settings.extend_vocabulary)
            tokenizers = TokenizerPair(tokenizer, tokenizer)
        tokenizers.save(run.directory)
        run.say(f"vocabulary: {tokenizers.source.size:,} pieces")
        for part in ("train", "dev", *(["test"] if run.corpus.test is not None else [])):
            report = binarise_texts(
                self._documents(part),
                tokenizers.source,
                run.data / f"{part}.arrow",
                documents=settings.data.documents,
            )
            run.say(f"{part}: {report}")

    def _documents(self, part: str) -> Iterator[str]:
        files: Files | None = getattr(self.run.corpus, part)
        held = self.run.corpus.dev is None and part != "test"
        path = self.run.data / f"{part}.txt" if held or files is None else files.source
        return read_documents([path], self.run.settings.data.documents)

    def _hold_out(self) -> None:
        """Divide the training text: of one long text the end is for validation, of many a fixed choice."""
        run = self.run
        source, documents = run.corpus.train.source, run.settings.data.documents
        parts: dict[str, list[str]] = {"train": [], "dev": []}
        if documents == "file":
            lines = list(read_lines(source))
            left = (1 - VALIDATION_SHARE) * sum(len(line) + 1 for line in lines)
            for line in lines:
                parts["train" if left > 0 else "dev"].append(line)
                left -= len(line) + 1
        else:
            texts = list(read_documents([source], documents))
            chosen = held_out(len(texts))
            for text in texts:
                lines = parts["dev" if chosen(text) else "train"]
                lines += [*text.split("\n"), *([""] if documents == "paragraphs" else [])]
        if not any(line.strip() for line in parts["dev"]):
            raise UserError(
                f"{source}: is too short to hold any of it out for validation; give more text, or a dev file"
            )
        for part, lines in parts.items():
            write_lines(run.data / f"{part}.txt", lines)
        run.say(f"no dev file given: {len(parts['dev']):,} of {sum(map(len, parts.values())):,} lines are held out")
