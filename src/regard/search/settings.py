"""What a search may be told: the settings that `generation.json` of a model directory stores."""

from __future__ import annotations

from typing import Any

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
    min_tokens: int = Field(0, ge=0)
    """The end may not come before so many."""
    no_repeat: int = Field(0, ge=0)
    """No so many tokens in a row occur twice; 0: no such rule."""
    nbest: int = Field(1, ge=1)
    """Hypotheses returned, best first."""
    batch_tokens: int = Field(4096, ge=1)
    """Budget of a batch: sources times beam times tokens of its longest source."""

    @model_validator(mode="after")
    def _nbest_within_beam(self) -> SearchSettings:
        if self.nbest > self.beam:
            raise ValueError(f"nbest = {self.nbest} needs a beam of at least that size, not {self.beam}")
        return self


class SamplingSettings(Settings):
    """What tokens are drawn from."""

    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Scores are divided by it before a token is drawn; 0 always takes the most probable one."""
    top_k: int = Field(0, ge=0)
    """Draw from so many of the most probable tokens; 0 or more than there are: from all."""
    top_p: float = Field(1.0, ge=0, le=1)
    """Draw from the most probable tokens that together have this probability; 1: from all."""
    min_p: float = Field(0.0, ge=0, le=1)
    """Draw from tokens that are at least so probable, as a share of the most probable one's probability."""
    seed: int | None = None
    """The same input with the same seed gives the same text, whatever stands beside it; None: a new one each time."""


class GenerationSettings(SamplingSettings):
    """How a decoder continues a text. Which way of searching, is said by `contrastive`, `beam` and `temperature`."""

    max_tokens: int | None = Field(256, ge=1)
    """New tokens at most; None: until the model ends the text or its length is used up."""
    min_tokens: int = Field(0, ge=0)
    """The end may not come before so many."""
    n: int = Field(1, ge=1)
    """Texts for each prompt."""
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
