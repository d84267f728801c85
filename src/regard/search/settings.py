"""What a search may be told: the settings that `generation.json` of a model directory stores."""

from __future__ import annotations

from pydantic import Field, model_validator

from regard.settings import Settings


class SearchSettings(Settings):
    """How outputs are searched for. Defaults: the paper's (section 6.1)."""

    beam: int = Field(4, ge=1)
    """Hypotheses kept at once; 1 is greedy search."""
    alpha: float = Field(0.6, ge=-5, le=5)
    """Length penalty: hypotheses are ranked by log-probability / ((5 + tokens) / 6)^alpha (Wu et al. 2016)."""
    extra_tokens: int = Field(50, ge=1)
    """An output has at most so many tokens more than its source."""
    nbest: int = Field(1, ge=1)
    """Hypotheses returned, best first."""
    batch_tokens: int = Field(4096, ge=1)
    """Budget of a batch: sources times beam times tokens of its longest source."""

    @model_validator(mode="after")
    def _nbest_within_beam(self) -> SearchSettings:
        if self.nbest > self.beam:
            raise ValueError(f"nbest = {self.nbest} needs a beam of at least that size, not {self.beam}")
        return self
