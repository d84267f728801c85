"""A model directory as a Python object: the pipeline for what the model does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.pipelines.classifier import Classifier
    from regard.pipelines.directory import Pipeline, choose_device, write_directory
    from regard.pipelines.filler import MaskFiller
    from regard.pipelines.generator import TextGenerator
    from regard.pipelines.images import ImageClassifier
    from regard.pipelines.kinds import load
    from regard.pipelines.transcriber import Transcriber
    from regard.pipelines.translator import Translator
    from regard.search.requests import Request
    from regard.search.settings import SamplingSettings

__all__ = [
    "Classifier",
    "ImageClassifier",
    "MaskFiller",
    "Pipeline",
    "Request",
    "SamplingSettings",
    "TextGenerator",
    "Transcriber",
    "Translator",
    "choose_device",
    "load",
    "write_directory",
]

_MODULES = {
    "Classifier": "regard.pipelines.classifier",
    "ImageClassifier": "regard.pipelines.images",
    "MaskFiller": "regard.pipelines.filler",
    "Pipeline": "regard.pipelines.directory",
    "Request": "regard.search.requests",
    "SamplingSettings": "regard.search.settings",
    "TextGenerator": "regard.pipelines.generator",
    "Transcriber": "regard.pipelines.transcriber",
    "Translator": "regard.pipelines.translator",
    "choose_device": "regard.pipelines.directory",
    "load": "regard.pipelines.kinds",
    "write_directory": "regard.pipelines.directory",
}


def __getattr__(name: str) -> Any:
    """Import what a name stands for when it is used: whoever translates needs nothing of what classifies."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'regard.pipelines' has no attribute {name!r}")
