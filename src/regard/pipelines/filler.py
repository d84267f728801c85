"""A masked language model as a Python object: `MaskFiller`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from regard.data.masking import control_ids
from regard.errors import UserError
from regard.model import store
from regard.model.transformer import BidirectionalEncoder
from regard.pipelines.directory import ModelDirectory, Pipeline, listed
from regard.pipelines.reading import WINDOW, read, room
from regard.search.inputs import encode_or_replace
from regard.search.ranking import largest
from regard.search.windows import windows
from regard.text.tokenizer import Tokenizer, TokenizerPair

log = logging.getLogger("regard")

MASK = re.compile(r"\[MASK\]|<mask>")
"""How a mask is written. It stands for one token, and for the space before that."""


@dataclass(frozen=True)
class Filling:
    """A token that may stand where a mask is."""

    text: str
    id: int
    probability: float


@dataclass(frozen=True)
class Filled:
    """What became of one text."""

    text: str
    """The text with the most probable token in place of each mask."""
    masks: tuple[tuple[Filling, ...], ...]
    """For each mask of the text its most probable fillings, best first."""


class MaskFiller(Pipeline):
    """Guesses the tokens behind masks. Threads may share one: a call changes nothing on it.

    Several masks of a text are guessed at once, each without knowing what the others become.
    """

    kinds = ("masked-lm",)
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

        Raises:
            UserError: the tokenizer has no mask.
        """
        self.model: BidirectionalEncoder = model.eval()
        self.tokenizer = tokenizer
        self.tokenizers = TokenizerPair(tokenizer, tokenizer)
        self.workers = workers
        self.languages = languages or store.Languages()
        if self.tokenizer.mask is None:
            raise UserError("the tokenizer has no mask token, which a masked language model needs")
        self._mask = self.tokenizer.mask
        self._anchor_length = len(self.tokenizer.encode([ANCHOR])[0])
        self._never = control_ids(self.tokenizer)

    @classmethod
    def of(cls, directory: ModelDirectory) -> Self:
        assert isinstance(directory.model, BidirectionalEncoder)
        return cls(directory.model, directory.tokenizers.source, languages=directory.config.languages)

    def fill(self, texts: str | Sequence[str], best: int = 5) -> list[Filled]:
        """The `best` fillings of each mask, written `[MASK]` or `<mask>`, of each text, in order.

        Raises:
            UserError: a text has no mask, or is longer than the model can read.
        """
        return list(self._stream(listed(texts), best, None, "text", strict=True))

    def stream(
        self, texts: Iterable[str], best: int = 5, *, patience: float | None = None, name: str = "input"
    ) -> Iterator[Filled]:
        """As `fill`, for texts as they come, without holding all of them.

        A text that cannot be filled has no fillings, and a warning says why.

        Args:
            texts: read ahead by a thread when `patience` is given.
            best: how many fillings of each mask.
            patience: what has come is worked on when nothing more has for so many seconds.
            name: stands in warnings before the number of the line.
        """
        return self._stream(texts, best, patience, f"{name}, line", strict=False)

    def _stream(
        self, texts: Iterable[str], best: int, patience: float | None, name: str, strict: bool
    ) -> Iterator[Filled]:
        first = 1
        for window in windows(texts, WINDOW, patience):
            names = [f"{name} {first + place}" for place in range(len(window))]
            yield from self._window(window, names, best, strict)
            first += len(window)

    def _window(self, texts: list[str], names: list[str], best: int, strict: bool) -> Iterator[Filled]:
        ids = [self._encode(text, line) for text, line in zip(texts, names, strict=True)]
        good = []
        for place, (line, tokens) in enumerate(zip(names, ids, strict=True)):
            problem = self._problem(tokens)
            if problem is None:
                good.append(place)
            elif strict:
                raise UserError(f"{line}: {problem}")
            elif texts[place].strip():
                log.warning("%s: %s", line, problem)
        chosen = [ids[place] for place in good]
        begin = len(self.tokenizer.frames.begin)

        def answer(states_BSD: Tensor, batch: list[int]) -> list[tuple[tuple[Filling, ...], ...]]:
            return [
                self._fillings(
                    states_BSD[row, [begin + at for at, number in enumerate(chosen[index]) if number == self._mask]],
                    best,
                )
                for row, index in enumerate(batch)
            ]

        found = dict(zip(good, read(self.model, self.tokenizer, chosen, answer, self.workers), strict=True))
        for place, text in enumerate(texts):
            masks = found.get(place, ())
            yield Filled(self._filled(ids[place], masks) if masks else text, masks)

    def _fillings(self, states_ND: Tensor, best: int) -> tuple[tuple[Filling, ...], ...]:
        probabilities_NV = self.model.logits(states_ND).float().softmax(dim=-1)
        probabilities_NV[:, self._never] = -1.0
        values, ids = largest(probabilities_NV, min(best, probabilities_NV.shape[1] - len(self._never)))
        return tuple(
            tuple(
                Filling(self.tokenizer.decode([[number]])[0].strip(" "), number, probability)
                for number, probability in zip(row_ids, row_values, strict=True)
            )
            for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
        )

    def _filled(self, ids: list[int], masks: tuple[tuple[Filling, ...], ...]) -> str:
        best = iter(masks)
        return self.tokenizer.decode([[next(best)[0].id if number == self._mask else number for number in ids]])[0]

    def _problem(self, ids: list[int]) -> str | None:
        """Why a text cannot be filled, if it cannot."""
        most = room(self.model, self.tokenizer)
        if self._mask not in ids:
            return "has no mask; write [MASK] where a token is to be guessed"
        return f"has {len(ids)} tokens, of which the model can read {most}; shorten it" if len(ids) > most else None

    def _encode(self, text: str, name: str) -> list[int]:
        """The ids of a text, with that of the mask where it is written."""
        *before, last = MASK.split(text)
        # A mask stands for the space before it too: as in training, where tokens are hidden with their spaces.
        first, *others = *(part.removesuffix(" ") for part in before), last
        anchored = encode_or_replace(self.tokenizer, [f"{ANCHOR}{part}" for part in others], [name] * len(others))
        (ids,) = encode_or_replace(self.tokenizer, [first], [name])
        for part in anchored:
            ids += [self._mask, *part[self._anchor_length :]]
        return ids


ANCHOR = "0"
"""A text for what follows a mask to go on from, that no tokenizer joins with what comes after it but a number."""
