"""Decoding in steps of static shapes, each captured once and repeated: what keeps a GPU busy.

A search begins as any other does (`CachedDecoder` reads the sources, the forced tokens and the first token). What it
then holds moves into a bucket: a static cache with a captured step, as large as the next powers of two. It moves on to
another one when it outgrows that, or leaves most of it idle.

Shapes: B sources and W rows of each that a bucket has places for, R rows and N sources that are decoded, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import deque
from threading import Lock
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.model.cache import Cache, Held, StaticCache
from regard.model.masks import Mask
from regard.model.transformer import EncoderDecoder, Memory
from regard.search.capture import Capture, directly
from regard.search.decoder import CachedDecoder

log = logging.getLogger("regard")

LEAST = 32
"""The shortest sources and outputs that room is made for: a graph for each length would be one for most sentences."""
IDLE = 4
"""A bucket is left for a smaller one as soon as only one in so many of its rows is needed: moving is not free."""
KEPT = 32
"""The most buckets that wait for their next search: batches of news take 26 (docs/decisions/012)."""


class Shape(NamedTuple):
    """The size of a bucket."""

    sources: int
    width: int
    """Rows of each source."""
    source_length: int
    capacity: int
    """Tokens of each row."""

    def suits(self, sources: int, width: int, tokens: int) -> bool:
        """Whether so much finds room, and needs it."""
        fits = sources <= self.sources and width <= self.width and tokens <= self.capacity
        return fits and sources * width * IDLE > self.sources * self.width


class Bucket:
    """A static cache, and a step of a model over it."""

    def __init__(self, model: EncoderDecoder, shape: Shape, capture: Capture) -> None:
        self.shape = shape
        self.cache = cache = StaticCache(model.settings, *shape, model.output)
        self.tokens_BW = tokens_BW = model.output.new_zeros(shape.sources, shape.width, dtype=torch.long)
        # What the layers make of the encoder's output is in the cache: none of it is read any more.
        unread_BSD = model.output.new_zeros(()).expand(shape.sources, shape.source_length, model.settings.d_model)

        def step() -> Tensor:
            mask = Mask(cache.held.real_BS[:, None, None], never_empty=True)
            hidden_R1D = model.decode(tokens_BW.view(-1, 1), Memory(unread_BSD, mask), cache)
            logits_RV: Tensor = model.logits(hidden_R1D[:, 0])
            return logits_RV

        self._step = capture(step)

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.cache.held)

    def step(self, tokens_NW: Int[Tensor, "N W"]) -> Float[Tensor, "R V"]:
        """Append a token to each row that is decoded; the logits of the token after it, as a copy."""
        sources, width = tokens_NW.shape
        self.tokens_BW[:sources, :width] = tokens_NW
        logits_BWV: Tensor = self._step().unflatten(0, self.tokens_BW.shape)
        return logits_BWV[:sources, :width].clone(memory_format=torch.contiguous_format).flatten(0, 1)


class Pool:
    """The buckets of a model. Threads may share it: a bucket belongs to one search at a time."""

    def __init__(self, model: EncoderDecoder, capture: Capture, room: int) -> None:
        """Those that wait hold at most `room` bytes, and are at most `KEPT`; the ones used last stay."""
        self.model, self.capture, self.room = model, capture, room
        self.reach = model.target_embedding.positions.reach
        self.obstacle: str | None = None
        """Why a step could not be captured, if one could not."""
        self._waiting: list[Bucket] = []
        self._lock = Lock()
        self._returned: deque[Bucket] = deque()

    def shape(self, sources: int, width: int, source_length: int, tokens: int) -> Shape:
        """For so many tokens of each row, where outputs are mostly about as long as their sources.

        Raises:
            ValueError: the model has fewer positions.
        """
        if self.reach is not None and tokens > self.reach:
            raise ValueError(f"{tokens} positions are more than the model's max_length of {self.reach}")
        capacity = _power(max(tokens, source_length, LEAST))
        capacity = capacity if self.reach is None else min(capacity, self.reach)
        return Shape(_power(sources), _power(width), _power(max(source_length, LEAST)), capacity)

    def lend(self, shape: Shape) -> Bucket:
        """A bucket of this shape, empty."""
        bucket = self._found(shape) or self._made(shape)
        bucket.cache.clear()
        return bucket

    def give_back(self, bucket: Bucket) -> None:
        """Let another search have it. That is safe wherever a decoder is collected, even while the lock is held."""
        self._returned.append(bucket)

    def _found(self, shape: Shape) -> Bucket | None:
        with self._lock:
            self._tidy()
            for bucket in reversed(self._waiting):
                if bucket.shape == shape:
                    self._waiting.remove(bucket)
                    return bucket
        return None

    def _made(self, shape: Shape) -> Bucket:
        try:
            return Bucket(self.model, shape, self.capture)
        except torch.OutOfMemoryError:
            with self._lock:
                self._tidy()
                self._waiting.clear()
            return Bucket(self.model, shape, self.capture)
        except RuntimeError as error:
            self.obstacle = str(error).partition("\n")[0]
            log.warning("a step cannot be captured as a CUDA graph, and goes more slowly: %s", self.obstacle)
            return Bucket(self.model, shape, directly)

    def _tidy(self) -> None:
        while self._returned:
            self._waiting.append(self._returned.popleft())
        while len(self._waiting) > KEPT or sum(bucket.bytes for bucket in self._waiting) > self.room:
            del self._waiting[0]


class StaticDecoder:
    """A `Decoder` that begins as another one and goes on in buckets."""

    def __init__(self, start: CachedDecoder, pool: Pool, sources: int) -> None:
        self._pool = pool
        self._bucket: Bucket | None = None
        """What decodes, once the first token has been read."""
        self._start: CachedDecoder | None = start
        """What decodes before."""
        self._sources, self._width = sources, 1
        self._begun = start.cache.length
        self._count = self._begun
        """Tokens that each row holds."""

    def __del__(self) -> None:
        if self._bucket is not None:
            self._pool.give_back(self._bucket)

    @torch.inference_mode()
    def step(self, tokens_R: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        if self._start is not None and self._count == self._begun:
            logits_RV = self._start.step(tokens_R)
        else:
            bucket = self._bucket
            if bucket is None or self._count == bucket.shape.capacity:
                bucket = self._settle(torch.arange(len(tokens_R), device=tokens_R.device), None)
            logits_RV = bucket.step(tokens_R.reshape(self._sources, self._width))
        self._count += 1
        return logits_RV

    @torch.inference_mode()
    def reorder(self, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None) -> None:
        if self._start is not None and self._count == self._begun:
            self._start.reorder(rows_R, sources_N)
            self._sources = self._sources if sources_N is None else len(sources_N)
            self._width = len(rows_R) // self._sources
        else:
            self._settle(rows_R, sources_N)

    def _settle(self, rows_R: Tensor, sources_N: Tensor | None) -> Bucket:
        """Go on with these rows of these sources, in another bucket where this one has no room or too much."""
        sources = self._sources if sources_N is None else len(sources_N)
        width = len(rows_R) // sources
        before = self._bucket
        if before is None:
            assert self._start is not None
            held = _held(self._start)
        else:
            held = before.cache.held
            rows_R = rows_R // self._width * before.shape.width + rows_R % self._width
        bucket = before
        if bucket is None or not bucket.shape.suits(sources, width, self._count + 1):
            bucket = self._pool.lend(self._pool.shape(sources, width, held.real_BS.shape[1], self._count + 1))
            if sources_N is None:
                sources_N = torch.arange(sources, device=rows_R.device)
        bucket.cache.take(held, rows_R, sources_N, sources, self._count)
        if before is not None and before is not bucket:
            self._pool.give_back(before)
        self._start, self._bucket, self._sources, self._width = None, bucket, sources, width
        return bucket


def _held(decoder: CachedDecoder) -> Held:
    """A copy of what a decoder holds that has read a token."""
    cache, memory = decoder.cache, decoder.memory
    assert isinstance(cache, Cache)
    assert isinstance(memory, Memory)
    if memory.mask is None:
        real_BS = torch.ones(memory.states_BSD.shape[:2], dtype=torch.bool, device=memory.states_BSD.device)
    else:
        real_BS = memory.mask.allowed_BHTS[:, 0, 0]
    return Held.by(cache.layers, real_BS)


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()
