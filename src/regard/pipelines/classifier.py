"""An encoder with labels as a Python object: `Classifier`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Self

from torch import Tensor

from regard.data.labelled import encode_words, word_parts
from regard.errors import UserError
from regard.model import store
from regard.model.transformer import BidirectionalEncoder
from regard.pipelines.directory import ModelDirectory, Pipeline, listed
from regard.pipelines.reading import WINDOW, read, room
from regard.search.inputs import encode_or_replace
from regard.search.windows import windows
from regard.text.tokenizer import Tokenizer, TokenizerPair

log = logging.getLogger("regard")


@dataclass(frozen=True)
class Label:
    """A label and how probable it is."""

    name: str
    probability: float


def ranked(names: Sequence[str], probabilities_BL: Tensor) -> list[tuple[Label, ...]]:
    """The labels of each row with their probabilities, best first."""
    return [
        tuple(sorted(map(Label, names, row), key=lambda label: -label.probability)) for row in probabilities_BL.tolist()
    ]


@dataclass(frozen=True)
class Classified:
    """What became of a text: its labels, best first; none where there is no text."""

    text: str
    labels: tuple[Label, ...]
    shortened: bool = False
    """Whether the text was longer than the model can read, and its end was left out."""

    @property
    def best(self) -> Label | None:
        return self.labels[0] if self.labels else None


@dataclass(frozen=True)
class Word:
    """A word of a text and its label."""

    text: str
    label: Label


class Classifier(Pipeline):
    """Labels texts, or the words of texts. Threads may share one: a call changes nothing on it."""

    kinds = ("text", "tokens")
    settings = None

    def __init__(
        self,
        model: BidirectionalEncoder,
        tokenizer: Tokenizer,
        workers: int = 1,
        languages: store.Languages | None = None,
    ) -> None:
        """From the parts; `load` reads them from a directory. The model is put into evaluation mode.

        With several `workers`, so many batches of a call are worked on at once, each by a thread.
        """
        assert model.head_settings is not None
        self.model: BidirectionalEncoder = model.eval()
        self.head = model.head_settings
        self.tokenizer = tokenizer
        self.tokenizers = TokenizerPair(tokenizer, tokenizer)
        self.workers = workers
        self.languages = languages or store.Languages()

    @classmethod
    def of(cls, directory: ModelDirectory) -> Self:
        assert isinstance(directory.model, BidirectionalEncoder)
        return cls(directory.model, directory.tokenizers.source, languages=directory.config.languages)

    @property
    def labels_words(self) -> bool:
        """Whether words have labels (`label_words`), or texts as a whole (`classify`)."""
        return self.head.kind == "tokens"

    def classify(self, texts: str | Sequence[str]) -> list[Classified]:
        """The labels of each text, in order, each with all labels and their probabilities, best first.

        Raises:
            UserError: the model labels words.
        """
        return list(self._stream(listed(texts), None, "text"))

    def stream(
        self, texts: Iterable[str], *, patience: float | None = None, name: str = "input"
    ) -> Iterator[Classified]:
        """As `classify`, for texts as they come, without holding all of them.

        Args:
            texts: read ahead by a thread when `patience` is given.
            patience: what has come is worked on when nothing more has for so many seconds.
            name: stands in warnings before the number of the line.
        """
        return self._stream(texts, patience, f"{name}, line")

    def label_words(self, texts: str | Sequence[str]) -> list[tuple[Word, ...]]:
        """The label of each word, as white space parts them, of each text, in order.

        Raises:
            UserError: the model labels texts as a whole.
        """
        return list(self.stream_words(listed(texts)))

    def stream_words(self, texts: Iterable[str], *, patience: float | None = None) -> Iterator[tuple[Word, ...]]:
        """As `label_words`, for texts as they come; see `stream`.

        A text that is longer than the model can read is read in parts, as in training.
        """
        if not self.labels_words:
            raise UserError("this model labels texts as a whole, not words: use classify")
        for window in windows(texts, WINDOW, patience):
            yield from self._words(window)

    def _stream(self, texts: Iterable[str], patience: float | None, name: str) -> Iterator[Classified]:
        if self.labels_words:
            raise UserError("this model labels words, not texts as a whole: use label_words")
        first = 1
        for window in windows(texts, WINDOW, patience):
            yield from self._texts(window, [f"{name} {first + place}" for place in range(len(window))])
            first += len(window)

    def _texts(self, texts: list[str], names: list[str]) -> Iterator[Classified]:
        filled = [place for place, text in enumerate(texts) if text.strip()]
        ids = encode_or_replace(self.tokenizer, [texts[place] for place in filled], [names[place] for place in filled])
        most = room(self.model, self.tokenizer)
        for place, tokens in zip(filled, ids, strict=True):
            if len(tokens) > most:
                log.warning("%s: has %d tokens, of which the model reads the first %d", names[place], len(tokens), most)

        def answer(states_BSD: Tensor, batch: list[int]) -> list[tuple[Label, ...]]:
            probabilities_BL = self.model.logits(states_BSD).float().softmax(dim=-1)
            return ranked(self.head.labels, probabilities_BL)

        read_ids = [tokens[:most] for tokens in ids]
        found = dict(zip(filled, read(self.model, self.tokenizer, read_ids, answer, self.workers), strict=True))
        shortened = {place for place, tokens in zip(filled, ids, strict=True) if len(tokens) > most}
        for place, text in enumerate(texts):
            yield Classified(text, found.get(place, ()), place in shortened)

    def _words(self, texts: list[str]) -> Iterator[tuple[Word, ...]]:
        sentences = [text.split() for text in texts]
        most, begin = room(self.model, self.tokenizer), len(self.tokenizer.frames.begin)
        parts: list[list[int]] = []
        firsts: list[list[int]] = []
        """Where the first token of each word of a part stands."""
        counts = []
        for encoded in encode_words(self.tokenizer, sentences):
            before = len(parts)
            for part in word_parts(encoded, most):
                parts.append(list(chain.from_iterable(part)))
                firsts.append(list(accumulate(map(len, part[:-1]), initial=begin)))
            counts.append(len(parts) - before)

        def answer(states_BSD: Tensor, batch: list[int]) -> list[list[Label]]:
            probabilities_BSL = self.model.logits(states_BSD).float().softmax(dim=-1)
            return [
                [self._best(probabilities_BSL[row, place]) for place in firsts[index]]
                for row, index in enumerate(batch)
            ]

        found = iter(read(self.model, self.tokenizer, parts, answer, self.workers))
        for words, count in zip(sentences, counts, strict=True):
            labels = [label for _ in range(count) for label in next(found)]
            yield tuple(map(Word, words, labels))

    def _best(self, probabilities_L: Tensor) -> Label:
        value, number = probabilities_L.max(dim=-1)
        return Label(self.head.labels[int(number)], float(value))
