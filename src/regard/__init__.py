"""The Transformer of "Attention Is All You Need" as a toolkit: train, translate, measure, look inside.

import regard
translator = regard.load("runs/mine/model")
translator.translate(["A man is riding a bicycle."])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from regard.errors import JobError, UserError
from regard.version import __version__

if TYPE_CHECKING:
    from regard.pipelines import Classifier, MaskFiller, Request, SamplingSettings, TextGenerator, Translator, load

__all__ = [
    "Classifier",
    "JobError",
    "MaskFiller",
    "Request",
    "SamplingSettings",
    "TextGenerator",
    "Translator",
    "UserError",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is used."""
    if name in __all__:
        from regard import pipelines

        return getattr(pipelines, name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
