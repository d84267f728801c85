"""All ways of searching that a user can ask a translator for, and all that carries a model out, over a tiny model.

A way of searching that is added here has to keep what `test_every_mode.py` says of each. The vocabulary has more tokens
than a search can look at, so all but a few of them, which write words of one letter, have probability 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np
import torch

from regard.data.shortlist import Shortlist
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.native import library
from regard.pipelines import Translator
from regard.search.requests import Request
from regard.search.settings import SamplingSettings
from regard.search.trouble import Mended
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

TOKENIZER = Tokenizer.learn(["a b c d", "d c b a", "b a d c"] * 3, TokenizerSettings(size=264))
TOKENIZERS = TokenizerPair(TOKENIZER, TOKENIZER)
END = TOKENIZER.eos
A, B, C, D = TOKENIZER.encode(["a b c d"])[0]
GLUED, MARK = (TOKENIZER.pieces(list(range(260))).index(piece) for piece in "b.")
"""A b that joins the word before it, and at the beginning is as good as the other; and a full stop."""
WORDS = (A, B, C, D, GLUED, MARK)
NEVER = -1e4
"""The logit of the other tokens. Weights have to be finite."""

_random = Random(1)
TEXTS = [" ".join(_random.choices("abcd", k=length)) for length in (1, 2, 4, 9)]
PARTS = ("a b!", "C d a!", "D!")
"""A text of several sentences."""
TEXTS.append(" ".join(PARTS))
EXTRA = 4


def build(seed: int, **settings: Any) -> EncoderDecoder:
    """A model that ends now and then, and says other things of other sources."""
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "max_length": 64}
    values |= {"dropout": 0.5, "tie": "none", "norm_placement": "pre", "output_bias": True}
    torch.manual_seed(seed)
    model = EncoderDecoder(ModelSettings(**{**values, **settings}), TOKENIZER.size, TOKENIZER.size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert model.output_bias is not None
    biases = dict.fromkeys(WORDS, 0.0) | {END: 0.5}
    model.output_bias.data = torch.tensor([biases.get(token, NEVER) for token in range(TOKENIZER.size)])
    return model


def constant(probabilities: Mapping[int, float]) -> EncoderDecoder:
    """A model that ignores its input: each token has the same probability everywhere."""
    model = build(0)
    assert model.output_bias is not None
    model.output.data.zero_()
    logs = {END: 2 * NEVER} | {token: float(np.log(value)) for token, value in probabilities.items()}
    model.output_bias.data = torch.tensor([logs.get(token, NEVER) for token in range(TOKENIZER.size)])
    return model


@dataclass(frozen=True)
class Mode:
    """A way of searching: the options of a call, and wishes that stand beside each text or some of them."""

    options: dict[str, Any] = field(default_factory=dict)
    wishes: dict[str, Any] = field(default_factory=dict)
    some: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Wishes beside the texts with these numbers."""

    def __call__(self, translator: Translator, texts: Sequence[str], **options: Any) -> list[Mended]:
        wishes = map(self.wished, texts)
        requests = [Request(text, **wished) if wished else text for text, wished in zip(texts, wishes, strict=True)]
        return translator.hypotheses(requests, **{"extra_tokens": EXTRA, "retry": False, **self.options, **options})

    def wished(self, text: str) -> dict[str, Any]:
        """What this text has to be like."""
        return {**self.wishes, **(self.some.get(TEXTS.index(text), {}) if text in TEXTS else {})}

    @property
    def beam(self) -> bool:
        """Whether it looks for the most probable."""
        return "sampling" not in self.options

    @property
    def nbest(self) -> int:
        """How many candidates there are at most."""
        if self.beam or "mbr" in self.options:
            return int(self.options.get("nbest", 1))
        return int(self.options["sampling"].n)


def drawing(**options: Any) -> dict[str, Any]:
    return {"sampling": SamplingSettings(**{"seed": 5, **options})}


BEAM = {"beam": 4, "nbest": 4}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": BEAM,
    "best of a beam": {"beam": 3, "alpha": 1.0},
    "diverse": {**BEAM, "groups": 2, "diversity": 1.0},
    "covering": {**BEAM, "coverage": 0.3},
    "drawn": drawing(n=3, temperature=0.7),
    "risk of a beam": {**BEAM, "mbr": "chrf"},
    "risk of draws": {**drawing(n=5), "mbr": "bleu", "beam": 2, "nbest": 2},
}
RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "prefix": ({}, {"prefix": "c d"}),
    "must": ({}, {"must": ("c", ("d a", "b d"))}),
    "forbid": ({"forbid": ("a",)}, {"forbid": ("b", "d d")}),
    "no repeat": ({"no_repeat": 2}, {}),
    "lengths": ({"min_tokens": 2, "min_ratio": 0.5, "max_ratio": 1.5}, {}),
    "all rules": (
        {"no_repeat": 3, "min_tokens": 4, "max_ratio": 4.0, "forbid": ("a",)},
        {"prefix": "c d", "must": ("a b",), "forbid": ("b",)},
    ),
}
ALONE: dict[str, dict[str, Any]] = {
    "no penalty": {**BEAM, "alpha": 0.0},
    "short ones": {**BEAM, "alpha": -1.0},
    "drawn once": drawing(),
    "top k": drawing(n=2, top_k=2),
    "top p": drawing(n=2, top_p=0.8),
    "min p": drawing(n=2, min_p=0.2),
    "epsilon": drawing(n=2, epsilon=0.2),
    "frozen": drawing(temperature=0),
    "hot": drawing(n=2, temperature=5.0),
    "retry": {**BEAM, "retry": True},
}
SPLIT = {f"{search}, split": {**options, "split": "always"} for search, options in SEARCHES.items()}
MODES = {
    **{name: Mode(options) for name, options in {**SEARCHES, **ALONE, **SPLIT}.items()},
    **{
        f"{search}, {rule}": Mode({**SEARCHES[search], **settings}, wishes)
        for search in ("greedy", "beam", "diverse", "drawn")  # the others look at what these find
        for rule, (settings, wishes) in RULES.items()
    },
    **{
        f"{search}, some with wishes": Mode(
            {**SEARCHES[search], "no_repeat": 2},
            some={0: {"must": (("a", "b", "c d", "b d"),)}, 2: {"must": ("c", "a d", "b", "a a")}},
        )
        for search in ("beam", "drawn")
    },
}


def _listed() -> Shortlist:
    """Some words for every source, another for sources with it only."""
    size = TOKENIZER.size
    always = np.array(sorted({END, A, B, C, MARK}), dtype=np.int32)
    offsets = np.cumsum([0, *(token == D for token in range(size))])
    return Shortlist(size, always, offsets, np.array([D], dtype=np.int32))


def one(model: EncoderDecoder, *how: Any, **options: Any) -> Translator:
    return Translator(model, TOKENIZERS).use(*how, **options)


def several(model: EncoderDecoder, *how: Any, **options: Any) -> Translator:
    return Translator(model, TOKENIZERS).together(Translator(build(4), TOKENIZERS)).use(*how, **options)


CARRIERS: dict[str, Callable[[EncoderDecoder], Translator]] = {
    "torch": lambda model: one(model, "torch"),
    "invariant": lambda model: one(model, "torch", invariant=True),
    "ensemble": lambda model: several(model, "torch"),
}
if library.library() is not None:
    CARRIERS |= {
        "float32": lambda model: one(model, "native", "float32"),
        "int8": lambda model: one(model, "native", "int8"),
        "shortlist": lambda model: Translator(model, TOKENIZERS, shortlist=_listed()).use("native", "float32"),
        "native ensemble": lambda model: several(model, "native", "float32", invariant=True),
    }
FEW = ("beam", "covering", "risk of draws")


def cases(carrier: str, modes: Iterable[str], few: Iterable[str]) -> list[tuple[str, str]]:
    """All of some modes with one carrier, and a few with each other one: the rules above them are the same code."""
    first = carrier if carrier in CARRIERS else "torch"
    others = [(mode, other) for other in CARRIERS if other != first for mode in few]
    return [*((mode, first) for mode in modes), *others]


EXACT = {"invariant", "float32", "int8", "shortlist", "native ensemble"}
"""What promises the same bits in any company."""


@cache
def translator(carrier: str) -> Translator:
    return CARRIERS[carrier](build(1))


@cache
def found(mode: str, carrier: str) -> tuple[Mended, ...]:
    """Each text by itself."""
    return tuple(MODES[mode](translator(carrier), [text])[0] for text in TEXTS)
