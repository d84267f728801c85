"""What a search may be told: the settings that `generation.json` of a model directory stores."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from regard.settings import Settings


class SearchSettings(Settings):
    """How outputs are searched for. Defaults: the paper's (section 6.1)."""

    beam: int = Field(4, ge=1)
    """Hypotheses kept at once; 1 is greedy search."""
    alpha: float = Field(0.6, ge=-5, le=5)
    """Length penalty: hypotheses are ranked by log-probability / ((5 + tokens) / 6)^alpha (Wu et al. 2016)."""
    extra_tokens: int = Field(50, ge=1)
    """An output has at most so many tokens more than its source."""
    max_ratio: float | None = Field(None, gt=0, allow_inf_nan=False)
    """And at most so many times the tokens of its source, rounded up; None: no such limit."""
    min_tokens: int = Field(0, ge=0)
    """The end may not come before so many."""
    min_ratio: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Nor before so many times the tokens of the source, rounded up."""
    no_repeat: int = Field(0, ge=0)
    """No so many tokens in a row occur twice; 0: no such rule."""
    forbid: tuple[str, ...] = ()
    """Words or phrases that no output may hold; a single one may stand for itself."""
    nbest: int = Field(1, ge=1)
    """Hypotheses returned, best first, each with another text."""
    groups: int = Field(1, ge=1)
    """Diverse beam search: the beam is divided into so many groups, each kept from saying what those before it say
    (Vijayakumar et al. 2016); 1: a single beam."""
    diversity: float = Field(0.5, ge=0, allow_inf_nan=False)
    """What a token costs a group for each hypothesis of earlier groups that has it at the same place."""
    coverage: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Weight of the coverage penalty, which ranks hypotheses lower that leave parts of the source unattended
    (Wu et al. 2016, equation 14); 0: without."""
    split: Literal["long", "always", "never"] = "long"
    """Which texts are translated sentence by sentence: those with more than `split_tokens`, all, or none."""
    split_tokens: int | None = Field(None, ge=1)
    """A text with more tokens is long, and a sentence with more is cut, where the model cannot read that many or knows
    shorter ones only. None: 256 from one language to another, and what the model can read for all else."""
    retry: bool = True
    """Whether translations that loop, are empty, copy their source or have no end are searched for again."""
    batch_tokens: int = Field(4096, ge=1)
    """Budget of a batch: sources times beam times tokens of its longest source."""

    @field_validator("forbid", mode="before")
    @classmethod
    def _one_or_several(cls, forbid: Any) -> Any:
        return (forbid,) if isinstance(forbid, str) else forbid

    @model_validator(mode="after")
    def _possible_together(self) -> SearchSettings:
        if self.nbest > self.beam:
            raise ValueError(f"nbest = {self.nbest} needs a beam of at least that size, not {self.beam}")
        if self.beam % self.groups:
            raise ValueError(f"groups = {self.groups} does not divide beam = {self.beam}; take a multiple as beam")
        if not all(map(str.strip, self.forbid)):
            raise ValueError("forbid: an empty text stands everywhere; give at least one character")
        if self.max_ratio is not None and self.min_ratio > self.max_ratio:
            raise ValueError(f"min_ratio = {self.min_ratio} is more than max_ratio = {self.max_ratio}")
        return self

    def least(self, tokens: int) -> int:
        """How many tokens the output of a source of so many has before its end."""
        return max(self.min_tokens, _times(self.min_ratio, tokens))

    def most(self, tokens: int) -> int:
        """And how many it may have, the end included."""
        limit = tokens + self.extra_tokens
        return limit if self.max_ratio is None else min(limit, _times(self.max_ratio, tokens) + 1)


def _times(ratio: float, tokens: int) -> int:
    """Rounded up, with the ratio as it is written: 1.1 times 10 is 11, but 12 where floats are multiplied."""
    return ceil(Fraction(str(ratio)) * tokens)


class SamplingSettings(Settings):
    """What tokens are drawn from."""

    n: int = Field(1, ge=1)
    """Texts for each input."""

    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Scores are divided by it before a token is drawn; 0 always takes the most probable one."""
    top_k: int = Field(0, ge=0)
    """Draw from so many of the most probable tokens; 0 or more than there are: from all."""
    top_p: float = Field(1.0, ge=0, le=1)
    """Draw from the most probable tokens that together have this probability; 1: from all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Draw from tokens that are at least so probable, as a share of the most probable one's probability."""
    epsilon: float = Field(0.0, ge=0, lt=1)
    """Draw from tokens that are at least so probable; the most probable one always stays."""
    seed: int | None = None
    """The same input with the same seed gives the same text, whatever stands beside it; None: a new one each time."""


class GenerationSettings(SamplingSettings):
    """How a decoder continues a text. Which way of searching, is said by `contrastive`, `beam` and `temperature`."""

    max_tokens: int | None = Field(256, ge=1)
    """New tokens at most; None: until the model ends the text or its length is used up."""
    min_tokens: int = Field(0, ge=0)
    """The end may not come before so many."""
    beam: int = Field(1, ge=1)
    """Above 1: beam search with so many hypotheses, instead of drawing."""
    alpha: float = Field(0.6, ge=-5, le=5)
    """Length penalty of beam search, as for translation."""
    contrastive: float = Field(0.0, ge=0, le=1)
    """Above 0: contrastive search, instead of drawing, with this weight against repeating what has been said."""
    candidates: int = Field(4, ge=2)
    """How many tokens contrastive search chooses from."""
    repetition_penalty: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Above 1: tokens that have occurred, in the prompt too, become less probable."""
    no_repeat: int = Field(0, ge=0)
    """No so many tokens in a row occur twice, the prompt included; 0: no such rule."""
    stop: tuple[str, ...] = ()
    """Texts that end the output, which is cut before them; a single one may stand for itself."""
    endless: bool = False
    """Go on beyond the model's length: only the first tokens and the latest are remembered (Xiao et al. 2024)."""
    sinks: int = Field(4, ge=1)
    """First tokens that endless text remembers."""
    recent: int | None = Field(None, ge=1)
    """Latest tokens that it remembers; None: as many as the model's length allows."""
    batch_tokens: int = Field(16384, ge=1)
    """Budget of a batch: prompts times texts at once for each times tokens of the longest, prompt and output."""

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, stop: Any) -> Any:
        return (stop,) if isinstance(stop, str) else stop

    @model_validator(mode="after")
    def _possible_together(self) -> GenerationSettings:
        if self.beam > 1 and self.contrastive > 0:
            raise ValueError("beam and contrastive are two ways of searching; choose one of them")
        if self.beam > 1 and self.n > self.beam:
            raise ValueError(f"n = {self.n} needs a beam of at least that size, not {self.beam}")
        if self.endless and (self.beam > 1 or self.contrastive > 0):
            raise ValueError("endless text is drawn; it goes with neither beam nor contrastive")
        if "" in self.stop:
            raise ValueError("stop: an empty text stands everywhere; give at least one character")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens = {self.min_tokens} is more than max_tokens = {self.max_tokens}")
        return self

    @property
    def deterministic(self) -> bool:
        """Whether nothing is left to chance, so that a second text would be the same as the first."""
        return self.beam > 1 or self.contrastive > 0 or self.temperature == 0

    @property
    def rows(self) -> int:
        """How many rows of a batch one prompt takes at most."""
        return max(self.n, self.beam, self.candidates if self.contrastive > 0 else 1)
