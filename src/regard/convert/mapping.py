"""The language in which foreign architectures are described: a table of names, read in both directions.

An `Architecture` says how a foreign configuration becomes our settings, how settings become a foreign configuration,
and which of our weights is which of theirs. A `Row` of that table holds an `Operation` that is undone exactly by its
other half, so that the two directions cannot drift apart: what is written by a table is what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.convert.config import Config
from regard.errors import UserError
from regard.model import store
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder, Model

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ids:
    """The control tokens that a foreign configuration names."""

    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    start: int | None = None
    """What a decoder is given first."""
    forced: int | None = None
    """What it is given next, such as the language that it writes."""


NONE = Ids()


@dataclass(frozen=True)
class Blueprint:
    """All that a model is built from."""

    family: str
    settings: ModelSettings
    source: int | None = None
    """Ids of what is read; None where the input is no text."""
    target: int | None = None
    """Ids of what is written; equal to `source` where a family has one vocabulary."""
    head: HeadSettings | None = None
    ids: Ids = NONE
    variant: str = ""
    """What a table of names has to know of a foreign file beside all that; no part of ours."""

    def build(self, origin: str = "the model") -> Model:
        """The model, with weights as they are before training; `UserError` names `origin` if there is none like it."""
        return store.build(self._config(origin))

    def outline(self, origin: str = "the model") -> dict[str, nn.Parameter]:
        """Its weights by name (a shared one has several), without memory for their values."""
        return weights(store.blueprint(self._config(origin)))

    def _config(self, origin: str) -> store.ModelConfig:
        vocabulary = {
            "source": None if self.family == CausalDecoder.family else self.source,
            "target": None if self.family == BidirectionalEncoder.family else self.target,
        }
        values = {"family": self.family, "vocabulary": vocabulary, "head": self.head, "model": self.settings}
        return store.ModelConfig.parse(values, origin)

    @classmethod
    def of(cls, model: Model, ids: Ids = NONE) -> Blueprint:
        """What `model` was built from."""
        config = store.describe(model)
        source, target = config.vocabulary.source, config.vocabulary.target
        if config.family != EncoderDecoder.family:
            source = target = source or target
        return cls(config.family, config.model, source, target, config.head, ids)


def weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of a model; a shared one stands under each of its names."""
    return dict(model.named_parameters(remove_duplicate=False))


@dataclass(frozen=True)
class Operation:
    """How several foreign tensors make one of ours, and how ours is taken apart again."""

    read: Callable[[Sequence[Tensor]], Tensor]
    write: Callable[[Tensor], Sequence[Tensor]]
    exact: bool = True
    """Whether values are only moved, so that no bit of them changes in any precision."""


SAME = Operation(lambda theirs: theirs[0], lambda ours: [ours])
TRANSPOSED = Operation(lambda theirs: theirs[0].T, lambda ours: [ours.T])
"""GPT-2's Conv1D stores [in, out]."""
FLAT = Operation(lambda theirs: theirs[0].flatten(), lambda ours: [ours[None]])
"""A vector that is stored as a matrix of one row."""
FLAT_TOKEN = Operation(lambda theirs: theirs[0].flatten(), lambda ours: [ours[None, None]])
"""A vector that is stored as [1, 1, D]."""


def stacked(*rows: int) -> Operation:
    """Their tensors of so many rows, one below the other: queries, keys and values, or gate and up."""
    return Operation(lambda theirs: torch.cat(list(theirs)), lambda ours: torch.split(ours, list(rows)))


def without_leading(rows: int) -> Operation:
    """Theirs begins with rows that nothing uses, such as those for padding positions; they are written as zeros."""
    return Operation(
        lambda theirs: theirs[0][rows:],
        lambda ours: [torch.cat((ours.new_zeros(rows, *ours.shape[1:]), ours))],
    )


def plus(constant: float) -> Operation:
    """Ours is theirs plus a constant: Gemma's normalisations multiply by 1 + weight."""
    return Operation(lambda theirs: theirs[0] + constant, lambda ours: [ours - constant], exact=False)


def scaled(factor: float) -> Operation:
    """Ours is theirs times a constant."""
    return Operation(lambda theirs: theirs[0] * factor, lambda ours: [ours / factor], exact=False)


@dataclass(frozen=True)
class Row:
    """One of our weights and what it is made of."""

    ours: str
    theirs: tuple[str | None, ...]
    """Their names. None stands for a part that they do not have: zeros here, and left out when written; only for
    what changes no result, such as a bias that is the same for all keys."""
    operation: Operation = SAME
    tied: tuple[str, ...] = ()
    """More names under which a file may hold the same tensor; they must then be equal and are not written."""
    instead: str | None = None
    """Where it stands if its own name is missing."""
    optional: bool = False
    """A file may lack it; it is zeros then."""
    unused: bool = False
    """They store it and never read it: written, so that nothing is missing to them, and never read."""

    def stored(self, name: str, names: Container[str]) -> str | None:
        """Under which of `names`, those in a file, the part `name` stands."""
        return next((each for each in (name, *self.tied, self.instead) if each is not None and each in names), None)

    @property
    def names(self) -> tuple[str, ...]:
        """What is written."""
        return tuple(name for name in self.theirs if name is not None)

    def parts(self, ours: Tensor) -> dict[str, Tensor]:
        """Their tensors, made of ours."""
        pieces = self.operation.write(ours)
        return {name: piece for name, piece in zip(self.theirs, pieces, strict=True) if name is not None}

    def whole(self, outline: Tensor, parts: Mapping[str, Tensor]) -> Tensor:
        """Our tensor, made of theirs; `outline` has its shape."""
        shapes = [piece.shape for piece in self.operation.write(outline)]
        pieces = [
            torch.zeros(shape) if name is None or name not in parts else parts[name]
            for name, shape in zip(self.theirs, shapes, strict=True)
        ]
        return self.operation.read(pieces)


def row(ours: str, *theirs: str | None, by: Operation = SAME, **more: Any) -> Row:
    """A row as it stands in a table: `row("decoder_norm.weight", "model.norm.weight")`."""
    return Row(ours, theirs, by, **more)


def repeated(count: int, ours: str, theirs: str, rows: Iterable[Row]) -> list[Row]:
    """`rows` once for each of `count` layers; `{}` in the prefixes becomes the layer's number."""
    table = list(rows)
    return [below(each, ours.format(i), theirs.format(i)) for i in range(count) for each in table]


def below(each: Row, ours: str, theirs: str) -> Row:
    """The row with a prefix on either side."""
    return replace(
        each,
        ours=ours + each.ours,
        theirs=tuple(None if name is None else theirs + name for name in each.theirs),
        tied=tuple(theirs + name for name in each.tied),
        instead=None if each.instead is None else theirs + each.instead,
    )


def linear(ours: str, theirs: str, bias: bool = True, by: Operation = SAME) -> list[Row]:
    """A layer's weight and bias (a normalisation's too). `by` concerns the weight."""
    return [row(f"{ours}.weight", f"{theirs}.weight", by=by)] + [row(f"{ours}.bias", f"{theirs}.bias")] * bias


def attention(
    settings: ModelSettings,
    ours: str,
    theirs: str,
    parts: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"),
    out: str = "out_proj",
    key_bias: bool = True,
) -> list[Row]:
    """A whole attention whose three maps they store apart, with the biases that the settings give it.

    `key_bias`: whether their keys have a bias where queries and values do. The same for all keys, it changes no
    softmax, so where they have none ours is zero and any other may be left out.
    """
    widths = stacked(
        settings.heads * settings.key_width,
        settings.key_heads * settings.key_width,
        settings.key_heads * settings.value_width,
    )
    rows = [row(f"{ours}.in_projection.weight", *(f"{theirs}.{part}.weight" for part in parts), by=widths)]
    if settings.attention_bias != "none":
        query, key, value = (f"{theirs}.{part}.bias" for part in parts)
        rows.append(row(f"{ours}.in_projection.bias", query, key if key_bias else None, value, by=widths))
    return rows + linear(f"{ours}.out_projection", f"{theirs}.{out}", bias=settings.attention_bias == "all")


class InexpressibleError(Exception):
    """A setting for which a foreign configuration has no word."""


def word_for(table: Mapping[Any, Value], value: Any, setting: str) -> Value:
    """What `table` has for the value of a setting; raises `InexpressibleError`."""
    if value not in table:
        raise InexpressibleError(f"{setting} = {value}")
    return table[value]


@dataclass(frozen=True)
class Architecture:
    """A foreign architecture, as its `config.json` names it in `model_type`."""

    name: str
    about: str
    """Whose models these are, in a few words."""
    prefix: str
    """What stands before every name of a whole model, and may be missing in a file of the base model alone."""
    settings: Callable[[Config, Collection[str]], Blueprint]
    """Our blueprint from their configuration and from the names of the tensors in the file."""
    config: Callable[[Blueprint], dict[str, Any]]
    """Their configuration, `architectures` included; called for any blueprint of the family (see `express`)."""
    rows: Callable[[Blueprint], Iterable[Row]]
    family: str
    harmless: frozenset[str] = frozenset()
    """Keys of the configuration that change no result, besides those of `config.HARMLESS`."""
    computed: tuple[str, ...] = ()
    """Patterns (full matches) of tensors in old files that are computed from the configuration, or never used."""

    def read(self, config: Config, names: Collection[str]) -> Blueprint:
        """Our blueprint; `UserError` lists every value of the configuration that is not supported."""
        plan = self.settings(config, names)
        config.finish(self.harmless)
        return plan

    def express(self, plan: Blueprint) -> tuple[dict[str, Any], Blueprint]:
        """The configuration of a model like `plan`, and the blueprint that it is read back as.

        The two blueprints are equal in essence but for vectors that are added: those that only they have are written as
        zeros.

        Raises:
            UserError: it has none, and why.
        """
        if plan.family != self.family:
            raise UserError(f"family = {plan.family}")
        try:
            values = self.config(plan)
            names = {name for each in self.rows(plan) for name in each.names}
            back = replace(self.read(Config(values, self.name), names), ids=plan.ids)
        except InexpressibleError as error:
            raise UserError(str(error)) from None
        obstacles = differences(plan, back)
        if obstacles:
            raise UserError(", ".join(obstacles))
        return values, back


_UNTOLD = {"dropout", "attention_dropout", "activation_dropout", "layer_dropout", "max_length", "source_max_length"}
"""What changes no result: used in training only, or a bound."""
_MORE: dict[str, list[Any]] = {
    "output_bias": [False, True],
    "feed_forward_bias": [False, True],
    "attention_bias": ["none", "in", "all"],
    "segments": [0, 1],
}
"""Vectors that may be added to no effect: zeros."""
_OWNER = {
    "sinusoids": ("positions", "sinusoidal"),
    "rotary": ("positions", "rotary"),
    "window_rotary": ("positions", "rotary"),
    "buckets": ("positions", "t5"),
    "patches": ("input", "patches"),
    "frames": ("input", "frames"),
}
"""Settings that matter only beside another one."""


def differences(plan: Blueprint, back: Blueprint) -> list[str]:
    """What of `plan` a foreign configuration does not say, by the names of settings."""
    ours, theirs = essence(plan), essence(back)
    found = []
    for key, value in ours.items():
        order = _MORE.get(key, [])
        more = value in order and theirs[key] in order[order.index(value) + 1 :]
        if value != theirs.get(key) and not more:
            found.append(f"{key} = {value}")
    return found


def essence(plan: Blueprint) -> dict[str, Any]:
    """What decides the results of a model like `plan`: settings that stand for the same give the same."""
    s = plan.settings
    values = {key: value for key, value in dict(s).items() if key not in _UNTOLD}
    if s.positions == "learned" and s.input != "patches":
        values |= {"max_length": s.max_length, "source_max_length": s.source_reach}
    for key, (owner, needed) in _OWNER.items():
        if values[owner] != needed:
            del values[key]
    values |= {
        "kv_heads": s.key_heads,
        "d_key": s.key_width,
        "d_value": s.value_width,
        "attention_scale": s.attention_scale or s.key_width**-0.5,
        "embedding_scale": s.embedding_scale or s.d_model**0.5,
        "final_norm": s.norm_placement != "post" if s.final_norm is None else s.final_norm,
        "vocabulary": (plan.source, plan.target),
        "head": plan.head,
    }
    unused = set()
    if "window" not in s.spans:
        unused |= {"window_rotary"}
    if set(s.spans) == {"full"}:
        unused |= {"window", "block", "global_tokens"}
    elif "blocks" not in s.spans:
        unused |= {"block"}
    if plan.family != EncoderDecoder.family:
        unused |= {"encoder_layers" if plan.family == CausalDecoder.family else "decoder_layers"}
        values["tie"] = s.ties_output
    if plan.family == BidirectionalEncoder.family and (plan.head is None or plan.head.kind != "masked-lm"):
        unused |= {"tie"}
    return {key: value for key, value in values.items() if key not in unused}
