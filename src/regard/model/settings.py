"""What a model is made of: the settings that `config.json` of a model directory stores."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from regard.settings import Settings


class ModelSettings(Settings):
    """The Transformer's dimensions and choices, by the paper's names. Defaults: the paper's base model (Table 3)."""

    d_model: int = Field(512, gt=0, le=2**16)
    """Width of every layer's input and output (section 3.1)."""
    d_ff: int = Field(2048, gt=0, le=2**20)
    """Width inside the feed-forward layer (section 3.3)."""
    heads: int = Field(8, gt=0, le=2**16)
    """Attention heads h (section 3.2.2)."""
    d_key: int | None = Field(None, gt=0, le=2**16)
    """Width of a head's queries and keys, d_k; unset: d_model / heads."""
    d_value: int | None = Field(None, gt=0, le=2**16)
    """Width of a head's values, d_v; unset: d_model / heads."""
    encoder_layers: int = Field(6, gt=0, le=1000)
    """Layers N of the encoder (section 3.1)."""
    decoder_layers: int = Field(6, gt=0, le=1000)
    """Layers N of the decoder."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """How positions enter (section 3.5): a row of the table in `positions.py`."""
    max_length: int = Field(1024, gt=0, le=2**20)
    """The most positions a sequence may have; learned positions have a vector for each."""
    norm_placement: Literal["post", "pre"] = "post"
    """Layer normalisation after each residual sum (the paper) or before each sub-layer (trains at higher rates)."""
    norm_epsilon: float = Field(1e-5, gt=0)
    """Added to the variance in layer normalisation."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the output of each sub-layer and on the sums of embeddings and positions (section 5.4)."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """On attention weights. The paper has none."""
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    """Inside the feed-forward layer. The paper has none."""
    tie: Literal["all", "decoder", "none"] = "all"
    """Which embeddings share one matrix: source, target and output (section 3.4); target and output; none."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSettings:
        if self.d_model % self.heads and (self.d_key is None or self.d_value is None):
            raise ValueError(
                f"heads = {self.heads} does not divide d_model = {self.d_model}; "
                "choose another number of heads or set d_key and d_value"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        return self

    @property
    def key_width(self) -> int:
        """d_k of the paper."""
        return self.d_key or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """d_v of the paper."""
        return self.d_value or self.d_model // self.heads
