"""A model packed for the compiled library, and the decoder that a search asks for its next tokens.

Shapes: R rows, N sources, C candidates of a row, V vocabulary, H heads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard.model.feed_forward import FeedForward
from regard.model.inputs import Embedding
from regard.model.positions import DistanceBiases, LearnedPositions, Positions, RotaryPositions, SinusoidalPositions
from regard.model.rotary import turn
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.native.library import NativeError, check, library

Precision = Literal["float32", "int8"]

ACTIVATIONS = {
    "relu": 0,
    "gelu": 1,
    "gelu-tanh": 2,
    "silu": 3,
    "glu": 4,
    "reglu": 0,
    "geglu": 1,
    "geglu-tanh": 2,
    "swiglu": 3,
}
"""The library's numbers of the rows of the table in `regard.model.feed_forward`."""


class _Settings(ctypes.Structure):
    """`Settings` of `transformer.h`."""

    _fields_ = [
        ("d_model", ctypes.c_int32),
        ("d_ff", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("d_key", ctypes.c_int32),
        ("d_value", ctypes.c_int32),
        ("encoder_layers", ctypes.c_int32),
        ("decoder_layers", ctypes.c_int32),
        ("source_vocabulary", ctypes.c_int32),
        ("target_vocabulary", ctypes.c_int32),
        ("norm_before", ctypes.c_int32),
        ("norm_after_sublayer", ctypes.c_int32),
        ("root_mean_square", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("gated", ctypes.c_int32),
        ("rotary_pairs", ctypes.c_int32),
        ("rotary_interleaved", ctypes.c_int32),
        ("eight_bits", ctypes.c_int32),
        ("epsilon", ctypes.c_float),
        ("source_scale", ctypes.c_float),
        ("target_scale", ctypes.c_float),
        ("attention_scale", ctypes.c_float),
        ("attention_softcap", ctypes.c_float),
        ("output_softcap", ctypes.c_float),
    ]


PLAIN = (
    nn.Linear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Identity,
    nn.ModuleList,
    nn.ModuleDict,
    parametrize.ParametrizationList,
)
"""Modules of torch whose weights say all; adapters are parametrizations, which add to them."""


def obstacle(model: object) -> str | None:
    """Why the library cannot carry out a model; None when it can."""
    if not isinstance(model, EncoderDecoder):
        return "it is no encoder-decoder"
    settings = model.settings
    reasons = {
        "the package was installed without a C++ compiler, or for another CPU": library() is None,
        f"the model reads {settings.input}": settings.input != "tokens",
        "the model's self-attention does not reach everything": set(settings.spans) != {"full"},
        "the model reads segments": settings.segments > 0,
        "the model is not on the CPU": any(parameter.device.type != "cpu" for parameter in model.parameters()),
    }
    for name, module in model.named_modules():
        reasons[f"{name} is a {type(module).__name__}"] = not _known(module)
    return next((reason for reason, holds in reasons.items() if holds), None)


def _known(module: nn.Module) -> bool:
    ours = type(module).__module__.startswith("regard.model.")
    return ours or type(module) in PLAIN or (isinstance(module, PLAIN) and parametrize.is_parametrized(module))


class PackedModel:
    """A model's weights in the library's form. Threads may share one; later changes of the model are not seen."""

    def __init__(self, model: EncoderDecoder, precision: Precision = "int8") -> None:
        """Raises `NativeError` for a model to which there is an `obstacle`, or for weights that are not finite."""
        reason = obstacle(model)
        loaded = library()
        if reason is not None or loaded is None:
            raise NativeError(reason or "there is no library")
        self.precision = precision
        self.library: ctypes.CDLL = loaded
        self.vocabulary: int = model.output.shape[0]
        tensors = _tensors(model)
        settings = _settings(model, precision)
        builder = loaded.regard_builder()
        try:
            for name, array in tensors.items():
                rows, columns = (1, *array.shape)[-2:]
                check(loaded.regard_tensor(builder, name.encode(), array.ctypes.data, rows, columns), loaded)
            self.handle: int = check(loaded.regard_model(builder, ctypes.byref(settings)), loaded)
        finally:
            loaded.regard_builder_free(builder)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.regard_model_free(self.handle)


def _settings(model: EncoderDecoder, precision: Precision) -> _Settings:
    settings = model.settings
    feed_forward = next((module for module in model.modules() if isinstance(module, FeedForward)), None)
    rotary = settings.positions == "rotary"
    source, target = model.source_embedding, model.target_embedding
    assert isinstance(source, Embedding)
    return _Settings(
        d_model=settings.d_model,
        d_ff=settings.d_ff,
        heads=settings.heads,
        key_heads=settings.key_heads,
        d_key=settings.key_width,
        d_value=settings.value_width,
        encoder_layers=len(model.encoder),
        decoder_layers=len(model.decoder),
        source_vocabulary=source.weight.shape[0],
        target_vocabulary=model.output.shape[0],
        norm_before=settings.norm_placement != "post",
        norm_after_sublayer=settings.norm_placement == "both",
        root_mean_square=settings.norm == "rms",
        activation=ACTIVATIONS[settings.feed_forward],
        gated=feed_forward is not None and feed_forward.gated,
        rotary_pairs=settings.rotary_width // 2 if rotary else 0,
        rotary_interleaved=settings.rotary.layout == "interleaved",
        eight_bits=precision == "int8",
        epsilon=settings.norm_epsilon,
        source_scale=source.scale,
        target_scale=target.scale,
        attention_scale=settings.attention_scale or settings.key_width**-0.5,
        attention_softcap=settings.attention_softcap or 0.0,
        output_softcap=settings.output_softcap or 0.0,
    )


def _tensors(model: EncoderDecoder) -> dict[str, np.ndarray]:
    """The weights by the names of their modules, with what adapters add, and tables of positions."""
    named: dict[str, Tensor] = {"output.weight": model.output}
    if model.output_bias is not None:
        named["output.bias"] = model.output_bias
    source, target = model.source_embedding, model.target_embedding
    assert isinstance(source, Embedding)
    for name, module in model.named_modules():
        for kind in ("weight", "bias"):
            tensor = getattr(module, kind, None)
            if isinstance(tensor, Tensor) and not isinstance(module, Positions):
                named[f"{name}.{kind}"] = tensor
    named |= _positions(model.settings, "source_positions", source.positions, model.settings.source_reach)
    named |= _positions(model.settings, "target_positions", target.positions, model.settings.max_length)
    for name, tensor in named.items():
        if not bool(tensor.isfinite().all()):
            raise NativeError(f"{name} has NaN or infinite values")
    return {name: np.ascontiguousarray(tensor.detach().float().numpy()) for name, tensor in named.items()}


def _positions(settings: ModelSettings, name: str, scheme: Positions, reach: int) -> dict[str, Tensor]:
    if isinstance(scheme, SinusoidalPositions):
        return {f"{name}.added": scheme.table_TD}
    if isinstance(scheme, LearnedPositions):
        return {f"{name}.added": scheme.weight}
    if isinstance(scheme, RotaryPositions):
        cos, sin = turn(scheme.frequencies_R, scheme.factor, torch.arange(reach)[None])
        return {f"{name}.cos": cos[0, 0], f"{name}.sin": sin[0, 0]}
    if isinstance(scheme, DistanceBiases):
        distance = torch.arange(-reach + 1, reach)
        heads_H1 = torch.arange(settings.heads)[:, None]
        return {f"{name}.bias": scheme.bias(distance, heads_H1)}
    return {}


class NativeDecoder:
    """Sources and the rows that grow from them, in the library. It serves one search, in one thread at a time."""

    def __init__(self, packed: PackedModel) -> None:
        self._packed, self._library = packed, packed.library
        self.vocabulary = packed.vocabulary
        self._handle = check(self._library.regard_session(packed.handle), self._library)
        self.rows = self.sources = 0

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.regard_session_free(self._handle)

    def read(self, sources: Sequence[Sequence[int]], shortlists: Sequence[Int[np.ndarray, " _"]] | None = None) -> None:
        """Read sources. Each comes last and gets as many rows as each of the others has (or one).

        Args:
            shortlists: the tokens that may be said of each source, ascending; the others have no probability.
        """
        ids, lengths = _joined(sources)
        listed = [None, None] if shortlists is None else _joined(shortlists)
        given = [None if each is None else each.ctypes.data for each in (ids, lengths, *listed)]
        width = self.rows // self.sources if self.sources else 1
        self._check(self._library.regard_join(self._handle, *given[:2], len(sources), *given[2:]))
        self.sources += len(sources)
        self.rows += width * len(sources)

    def advance(self, tokens_R: np.ndarray, wanted_R: np.ndarray | None = None) -> None:
        """Append a token to each row, or to those that are wanted."""
        tokens_R = np.ascontiguousarray(tokens_R, dtype=np.int32)
        if wanted_R is not None:
            wanted_R = np.ascontiguousarray(wanted_R, dtype=np.uint8)
        wanted = None if wanted_R is None else wanted_R.ctypes.data
        self._check(self._library.regard_step(self._handle, tokens_R.ctypes.data, wanted))

    def candidates(self, count: int, allowed_V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The best tokens after each row: log-probabilities [R, C] and tokens [R, C]. `allowed_V` holds 0 and -inf."""
        values_RC = np.empty((self.rows, count), dtype=np.float32)
        tokens_RC = np.empty((self.rows, count), dtype=np.int64)
        self._check(
            self._library.regard_candidates(
                self._handle, count, allowed_V.ctypes.data, values_RC.ctypes.data, tokens_RC.ctypes.data
            )
        )
        return values_RC, tokens_RC

    def step(self, tokens_R: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        self.advance(tokens_R.numpy())
        logits_RV = np.empty((self.rows, self._packed.vocabulary), dtype=np.float32)
        self._check(self._library.regard_logits(self._handle, logits_RV.ctypes.data))
        return torch.from_numpy(logits_RV)

    def reorder(self, rows_R: Int[Tensor, " R"], sources_N: Int[Tensor, " N"] | None) -> None:
        rows_R = rows_R.contiguous()
        sources_N = None if sources_N is None else sources_N.contiguous()
        sources, left = (None, -1) if sources_N is None else (sources_N.data_ptr(), len(sources_N))
        self._check(self._library.regard_reorder(self._handle, rows_R.data_ptr(), len(rows_R), sources, left))
        self.rows = len(rows_R)
        if sources_N is not None:
            self.sources = len(sources_N)

    def _check(self, result: int) -> None:
        check(result, self._library)


def _joined(lists: Sequence[Sequence[int] | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers one list after the other, and how many of each there are."""
    numbers = np.concatenate([np.asarray(each, dtype=np.int32) for each in lists])
    return numbers, np.array([len(each) for each in lists], dtype=np.int64)
