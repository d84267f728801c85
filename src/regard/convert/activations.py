"""Names of activations in configurations of `transformers`, and ours for the same functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Ours = TypeVar("Ours")

PLAIN: dict[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_python_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_accurate": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Of feed-forward layers with two maps."""

GATED: dict[str, str] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_python": "geglu",
    "gelu_pytorch_tanh": "geglu-tanh",
    "gelu_new": "geglu-tanh",
    "gelu_python_tanh": "geglu-tanh",
    "gelu_fast": "geglu-tanh",
    "gelu_accurate": "geglu-tanh",
    "relu": "reglu",
    "sigmoid": "glu",
}
"""Of those in which the function's value is a gate."""


def words(table: Mapping[str, Ours]) -> dict[Ours, str]:
    """The other way round: of several names for one function the first."""
    return {ours: theirs for theirs, ours in reversed(list(table.items()))}
