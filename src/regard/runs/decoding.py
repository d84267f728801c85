"""Validation by what the model is for: real translations, scored and shown."""

from __future__ import annotations

from torch import nn

from regard.evaluation.metrics import Score, corpus_scores
from regard.model.store import unwrap
from regard.model.transformer import EncoderDecoder
from regard.runs.prepare import Prepared, Say
from regard.runs.settings import RunSettings
from regard.search.engine import translate
from regard.search.settings import SearchSettings


class Decoding:
    """Translates and scores text with the model as it is."""

    def __init__(self, settings: RunSettings, prepared: Prepared, say: Say) -> None:
        count = settings.validation.sentences
        self.tokenizers = prepared.tokenizers
        self.sources = prepared.dev_source[:count]
        self.references = prepared.dev_target[:count]
        self.metrics = settings.metrics
        if self.metrics.language is None:
            self.metrics = self.metrics.model_copy(update={"language": settings.data.target_language})
        corpus_scores(["a"], [["a"]], self.metrics)  # a package that a score lacks is missed now, not after a while
        self.greedy = settings.search.model_copy(update={"beam": 1, "nbest": 1})
        self.samples = settings.validation.samples
        self.say = say

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The scores of validation text, translated by greedy search, by metric; some translations are shown."""
        return self.measure(model, show=True)

    def measure(self, model: nn.Module, show: bool = False) -> dict[str, float]:
        """The same, by default with nothing shown."""
        if not self.sources:
            return {}
        outputs, scores = self.score(model, self.sources, self.references, self.greedy)
        if show:
            self.show(self.sources, outputs, self.references)
        return {name: score.value for name, score in zip(dict.fromkeys(self.metrics.metrics), scores, strict=True)}

    def show(self, sources: list[str], outputs: list[str], references: list[str]) -> None:
        """Say some of the translations: the same sentences each time, so that progress shows."""
        wanted = min(len(sources), self.samples)
        for part in range(wanted):
            index = (2 * part + 1) * len(sources) // (2 * wanted)
            self.say(f"  {sources[index]}\n  → {outputs[index]}\n  = {references[index]}\n")

    def score(
        self, model: nn.Module, sources: list[str], references: list[str], search: SearchSettings
    ) -> tuple[list[str], list[Score]]:
        """Translations of `sources` and their scores against `references`."""
        inner = unwrap(model)
        if not isinstance(inner, EncoderDecoder):
            raise TypeError(f"cannot translate with {type(inner).__name__}")
        outputs = [each.best.text for each in translate(inner, self.tokenizers, sources, search, name="validation")]
        return outputs, corpus_scores(outputs, [references], self.metrics)
