"""What a model is made of: the settings that `config.json` of a model directory stores.

Defaults are the paper's base model; what later work added is off. Each choice by name is a row of the table in the file
that it names.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from regard.settings import Settings

Width = Annotated[int, Field(gt=0, le=2**20)]
Layers = Annotated[int, Field(ge=0, le=1000)]
Span = Literal["full", "window", "blocks"]


class SinusoidSettings(Settings):
    """Dialects of the paper's sinusoids (section 3.5) in other toolkits."""

    layout: Literal["interleaved", "halves"] = "interleaved"
    """Sine and cosine in turn (the paper), or all sines before all cosines (tensor2tensor, Marian, Whisper)."""
    spacing: Literal["paper", "inclusive"] = "paper"
    """Wavelengths from 2 pi to just below 10000 * 2 pi, or up to and including it (tensor2tensor, fairseq)."""
    first: int = Field(0, ge=0, le=2**20)
    """The position of the first token (fairseq begins after the padding's id)."""


class RotaryScaling(Settings):
    """How the frequencies of rotary positions are changed to reach further than in training."""

    kind: Literal["linear", "ntk", "llama3", "yarn"]
    """A row of the table in `rotary.py`, which has the sources."""
    factor: float = Field(ge=1)
    """How many times as far."""
    original_length: int | None = Field(None, gt=0)
    """Positions in training (llama3, yarn)."""
    low_frequency_factor: float = Field(1.0, gt=0)
    """llama3: wavelengths above original_length / this are scaled in full."""
    high_frequency_factor: float = Field(4.0, gt=0)
    """llama3: wavelengths below original_length / this stay."""
    beta_fast: float = Field(32.0, gt=0)
    """yarn: frequencies with more turns than this in training stay."""
    beta_slow: float = Field(1.0, gt=0)
    """yarn: frequencies with fewer turns than this are scaled in full."""
    truncate: bool = True
    """yarn: the borders between the two are rounded to whole dimensions."""
    attention_factor: float | None = Field(None, gt=0)
    """yarn: factor on queries and keys; unset: 0.1 ln(factor) + 1."""

    @model_validator(mode="after")
    def _complete(self) -> RotaryScaling:
        if self.kind in ("llama3", "yarn") and self.original_length is None:
            raise ValueError(f"scaling of kind {self.kind} needs original_length, the positions in training")
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ValueError("high_frequency_factor should be above low_frequency_factor")
        return self


class RotarySettings(Settings):
    """Rotary positions (Su et al. 2021, arXiv 2104.09864)."""

    base: float = Field(10_000.0, gt=1)
    """Dimension pair i turns by position * base^(-2i / width)."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Share of a head's width that is turned; the rest carries no position."""
    layout: Literal["halves", "interleaved"] = "halves"
    """Which dimensions form a pair: i and i + width/2 (GPT-NeoX, LLaMA), or 2i and 2i + 1 (the publication, GPT-J)."""
    scaling: RotaryScaling | None = None


class BucketSettings(Settings):
    """Relative position buckets (T5; Raffel et al. 2020, arXiv 1910.10683, section 2.1)."""

    count: int = Field(32, ge=4, le=2**16, multiple_of=4)
    """Biases learned for each head."""
    max_distance: int = Field(128, gt=1, le=2**20)
    """All distances from here on share the last bucket."""

    @model_validator(mode="after")
    def _room(self) -> BucketSettings:
        if self.max_distance <= self.count // 2:
            raise ValueError(f"max_distance = {self.max_distance} should be above count / 2 = {self.count // 2}")
        return self


class PatchSettings(Settings):
    """Images as input (ViT; Dosovitskiy et al. 2021, arXiv 2010.11929)."""

    height: int = Field(224, gt=0, le=2**14)
    width: int = Field(224, gt=0, le=2**14)
    size: int = Field(16, gt=0, le=2**14)
    """Side of a square patch, in pixels."""
    channels: int = Field(3, gt=0, le=2**10)

    @model_validator(mode="after")
    def _whole(self) -> PatchSettings:
        if self.height % self.size or self.width % self.size:
            raise ValueError(f"patches of {self.size} pixels do not fill an image of {self.height} x {self.width}")
        return self

    @property
    def count(self) -> int:
        return self.height // self.size * (self.width // self.size)


class FrameSettings(Settings):
    """Sound as input: log-mel frames (Whisper; Radford et al. 2022, arXiv 2212.04356, section 2.2)."""

    bins: int = Field(80, gt=0, le=2**12)
    """Values of a frame."""


class HeadSettings(Settings):
    """What stands on an encoder: a row of the table in `heads.py`."""

    kind: Literal["masked-lm", "text", "tokens"]
    """The token behind each mask; a label for the whole input; a label for each token."""
    labels: tuple[str, ...] = ()
    """The labels, in the order of the logits."""
    pooler: bool = True
    """text: a dense layer with tanh before the labels (BERT)."""

    @model_validator(mode="after")
    def _labels(self) -> HeadSettings:
        if (self.kind == "masked-lm") == bool(self.labels):
            raise ValueError(f"a head of kind {self.kind} {'has no' if self.labels else 'needs'} labels")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("two labels have the same name")
        return self


class AlignmentHead(Settings):
    """The part of a decoder's attention over the encoder's output that says which words stand for each other."""

    layer: int = Field(ge=0)
    """Layer of the decoder, counted from 0."""
    head: int | None = Field(0, ge=0)
    """A head of it, counted from 0; null: the mean of all."""


class ModelSettings(Settings):
    """The Transformer's dimensions and choices, by the paper's names. Defaults: the paper's base model (Table 3)."""

    d_model: int = Field(512, gt=0, le=2**16)
    """Width of every layer's input and output (section 3.1)."""
    d_ff: Width = 2048
    """Width inside the feed-forward layer (section 3.3)."""
    heads: int = Field(8, gt=0, le=2**16)
    """Attention heads h (section 3.2.2)."""
    kv_heads: int | None = Field(None, gt=0, le=2**16)
    """Heads of keys and values, each shared by heads / kv_heads query heads (grouped-query attention, Ainslie et al.
    2023, arXiv 2305.13245; 1: multi-query attention, Shazeer 2019, arXiv 1911.02150); unset: one for each."""
    d_key: int | None = Field(None, gt=0, le=2**16)
    """Width of a head's queries and keys, d_k; unset: d_model / heads."""
    d_value: int | None = Field(None, gt=0, le=2**16)
    """Width of a head's values, d_v; unset: d_model / heads."""
    encoder_layers: Layers = 6
    """Layers N of the encoder (section 3.1)."""
    decoder_layers: Layers = 6
    """Layers N of the decoder."""

    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "t5", "none"] = "sinusoidal"
    """How positions enter (section 3.5): a row of the table in `positions.py`."""
    sinusoids: SinusoidSettings = SinusoidSettings()
    rotary: RotarySettings = RotarySettings()
    window_rotary: RotarySettings | None = None
    """rotary: those of layers whose span is a window; unset: the same (Gemma 3, arXiv 2503.19786)."""
    buckets: BucketSettings = BucketSettings()
    max_length: int = Field(1024, gt=0, le=2**20)
    """The most positions a sequence may have; learned positions have a vector for each."""
    source_max_length: int | None = Field(None, gt=0, le=2**20)
    """The same for the source of an encoder-decoder; unset: max_length."""

    input: Literal["tokens", "patches", "frames"] = "tokens"
    """What the encoder reads: a row of the table in `inputs.py`."""
    patches: PatchSettings = PatchSettings()
    frames: FrameSettings = FrameSettings()
    segments: int = Field(0, ge=0, le=2**10)
    """Learned vectors for the parts of an input, such as two sentences (BERT); 0: none."""
    embedding_scale: float | None = Field(None, gt=0)
    """Factor on token vectors; unset: sqrt(d_model) (section 3.4)."""
    embedding_norm: bool = False
    """Normalise the sums of embeddings and positions (BERT, BART)."""

    norm: Literal["layer", "rms"] = "layer"
    """Kind of normalisation: a row of the table in `norms.py`."""
    norm_placement: Literal["post", "pre", "both"] = "post"
    """After each residual sum (the paper), before each sub-layer (trains at higher rates), or before and behind it,
    inside the residual connection (Gemma 2)."""
    norm_epsilon: float = Field(1e-5, gt=0)
    """Added to the variance in normalisation."""
    final_norm: bool | None = None
    """One more normalisation at the end of a stack; unset: unless norm_placement is post."""
    qk_norm: bool = False
    """Normalise each head's queries and keys (Henry et al. 2020, arXiv 2010.04245; Qwen 3, Gemma 3)."""

    feed_forward: Literal["relu", "gelu", "gelu-tanh", "silu", "glu", "reglu", "geglu", "geglu-tanh", "swiglu"] = "relu"
    """Activation of the feed-forward layer, gated ones too: a row of the table in `feed_forward.py`."""
    feed_forward_bias: bool = True
    """Whether the feed-forward layer's two maps have biases."""

    attention_bias: Literal["all", "in", "none"] = "all"
    """Which maps of attention have biases: all, those to queries, keys and values, or none."""
    attention_scale: float | None = Field(None, gt=0)
    """Factor on scores; unset: 1 / sqrt(d_k) (section 3.2.1)."""
    attention_softcap: float | None = Field(None, gt=0)
    """Scores are bent to stay within this: cap * tanh(score / cap) (Gemma 2, arXiv 2408.00118)."""
    output_softcap: float | None = Field(None, gt=0)
    """The same for logits."""
    output_bias: bool = False
    """A bias for each token on the logits. The paper has none."""
    spans: tuple[Span, ...] = Field(("full",), min_length=1)
    """What self-attention reaches, by layer, over again: a row of the table in `masks.py`."""
    window: int | None = Field(None, gt=0, le=2**20)
    """window: positions less than this apart. blocks: blocks less than this apart."""
    block: int = Field(64, gt=0, le=2**20)
    """blocks: positions of a block."""
    global_tokens: int = Field(0, ge=0, le=2**20)
    """window, blocks: so many first positions see all and are seen by all."""

    dropout: float = Field(0.1, ge=0, lt=1)
    """On the output of each sub-layer and on the sums of embeddings and positions (section 5.4)."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """On attention weights. The paper has none."""
    activation_dropout: float = Field(0.0, ge=0, lt=1)
    """Inside the feed-forward layer. The paper has none."""
    layer_dropout: float = Field(0.0, ge=0, lt=1)
    """The probability with which a layer is left out of a training step as a whole (LayerDrop; Fan et al. 2020,
    arXiv 1909.11556). The paper has none."""
    tie: Literal["all", "inputs", "decoder", "none"] = "all"
    """Which embeddings share one matrix: source, target and output (section 3.4); source and target (T5 v1.1); target
    and output; none."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelSettings:
        if self.d_model % self.heads and (self.d_key is None or self.d_value is None):
            raise ValueError(
                f"heads = {self.heads} does not divide d_model = {self.d_model}; "
                "choose another number of heads or set d_key and d_value"
            )
        if self.heads % self.key_heads:
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        if self.positions == "rotary" and self.rotary_width == 0:
            raise ValueError(f"rotary positions need a d_key of at least 2 / rotary.fraction, not {self.key_width}")
        return self

    @model_validator(mode="after")
    def _window_given(self) -> ModelSettings:
        if self.window is None and set(self.spans) != {"full"}:
            raise ValueError(f"spans = {', '.join(self.spans)} needs window, the distance that attention reaches")
        if self.input != "tokens" and self.ties_inputs:
            raise ValueError(f'input = {self.input} has no token vectors to share: choose tie = "decoder" or "none"')
        return self

    @property
    def source_reach(self) -> int:
        """The most positions a source may have."""
        return self.source_max_length or self.max_length

    @property
    def ties_inputs(self) -> bool:
        """Whether source and target share their vectors, and so one vocabulary."""
        return self.tie in ("all", "inputs")

    @property
    def ties_output(self) -> bool:
        """Whether the output matrix is that of the embedding."""
        return self.tie in ("all", "decoder")

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def key_width(self) -> int:
        """d_k of the paper."""
        return self.d_key or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """d_v of the paper."""
        return self.d_value or self.d_model // self.heads

    @property
    def rotary_width(self) -> int:
        """Dimensions of a head that rotary positions turn: an even number."""
        return int(self.key_width * self.rotary.fraction) // 2 * 2

    def span(self, layer: int) -> Span:
        """What self-attention of this layer reaches."""
        return self.spans[layer % len(self.spans)]
