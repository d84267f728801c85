"""Stop strings: the text of tokens as they come, which ends where one of the strings begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy

from regard.text.tokenizer import Tokenizer


class StopReader:
    """Turns tokens into text, in pieces of which each is certain: none of a piece is ever taken back.

    Held back are bytes that are no whole character yet, and an end of the text that a stop string may begin with. The
    string that is whole first counts, and of those that end together the longest, so that the borders of tokens do not
    matter.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int], stops: Sequence[str]) -> None:
        """`prompt` are the tokens before the text: they are no part of it, but white space may depend on them."""
        self._stream = tokenizer.stream()
        for token in prompt:
            self._stream.push(token)
        self._stops = stops
        self._held = ""
        self.stopped = False
        """Whether a stop string has come."""

    def copy(self) -> StopReader:
        """One that goes on from here by itself; the tokenizer is shared."""
        return deepcopy(self)

    def push(self, token: int) -> str:
        """The text that is certain now."""
        return self._certain(self._stream.push(token))

    def finish(self) -> str:
        """The rest of the text, after its last token."""
        text = self._certain(self._stream.finish())
        rest, self._held = self._held, ""
        return text + rest

    def _certain(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        found = [(place + len(stop), place) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)[1]], ""
            return text
        certain = len(self._held) - max((_begun(self._held, stop) for stop in self._stops), default=0)
        text, self._held = self._held[:certain], self._held[certain:]
        return text


def _begun(text: str, stop: str) -> int:
    """How much of `stop`, not all of it, `text` ends with."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
