"""A masked language model: hidden tokens from all others. Judged by its loss, and shown by what it fills in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from regard.data.masking import MaskedBatch, MaskedBatches
from regard.evaluation.metrics import Score
from regard.model import store
from regard.model.settings import HeadSettings
from regard.model.transformer import BidirectionalEncoder
from regard.pipelines.filler import MaskFiller
from regard.runs.prepare import shown
from regard.runs.settings import RunSettings
from regard.runs.task import Run
from regard.runs.texts import TextTask
from regard.training.loss import LossSums, masked_loss


class MaskedLanguageModel(TextTask):
    """An encoder that guesses hidden tokens (BERT), and learns language by it."""

    family = "encoder"
    metrics = ("loss",)
    options = TextTask.options | {"model.encoder_layers", "masking"}
    defaults: ClassVar[Mapping[str, Any]] = {
        "tokenizer": {"mask": True},
        "model": {"tie": "decoder"},
        "training": {"label_smoothing": 0.0},
    }
    python = 'fill(["... [MASK] ..."])'
    command = "regard fill MODEL 'some [MASK] text'"

    @classmethod
    def choices(cls, size: int) -> dict[str, Any]:
        if size < 1_000_000:
            return _choice("tiny-encoder", tokens=4_096, peak_rate=0.002, steps=5_000)
        if size < 50_000_000:
            return _choice("small-encoder", tokens=8_192, peak_rate=0.001, steps=50_000)
        return _choice("bert-base", tokens=32_768, peak_rate=0.0001, steps=500_000)

    @classmethod
    def update(cls, settings: RunSettings) -> str:
        return f"{settings.masking.tokens * settings.training.accumulate:,} tokens"

    @classmethod
    def mistake(cls, settings: RunSettings) -> str | None:
        context, reach = settings.masking.context, settings.model.max_length
        if context > reach:
            return f"masking.context = {context} needs a model.max_length of at least that, not {reach}"
        if settings.initial is None and not settings.tokenizer.mask:
            return "tokenizer.mask: a masked language model needs it to be true"
        return super().mistake(settings)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        settings = run.settings
        self.train = MaskedBatches(self.texts, settings.masking, settings.training.seed)
        self.dev = MaskedBatches(self.dev_texts, settings.masking)

    def model(self) -> store.ModelConfig:
        return store.ModelConfig(
            family="encoder",
            vocabulary=store.Vocabulary(source=self.tokenizers.source.size),
            head=HeadSettings(kind="masked-lm"),
            model=self.run.settings.model,
        )

    def loss(self, model: BidirectionalEncoder, batch: MaskedBatch) -> LossSums:
        training = self.run.settings.training
        return masked_loss(model, batch, training.label_smoothing, training.r_drop)

    def measure(self, model: nn.Module, show: bool = False) -> dict[str, float]:
        """Nothing beside the loss; what is shown is validation text with one token hidden."""
        if show:
            samples = self._samples()
            filler = self.pipeline(store.unwrap(model))
            for (text, word), filled in zip(samples, filler.stream([text for text, _ in samples], best=3), strict=True):
                guesses = ", ".join(f"{each.text} {each.probability:.0%}" for mask in filled.masks for each in mask)
                self.run.say(f"  {text}\n  → {guesses}\n  = {word}\n")
        return {}

    def _samples(self) -> list[tuple[str, str]]:
        """Pieces of validation text with the word in their middle hidden, and that word; the same ones each time."""
        samples = []
        for index in shown(len(self.dev_texts), self.run.settings.validation.samples):
            ids = self.dev_texts.document(index)[: self.run.settings.masking.context // 2].tolist()
            words = self.tokenizers.source.decode([ids])[0].split() or [""]
            middle = len(words) // 2
            samples.append((" ".join([*words[:middle], "[MASK]", *words[middle + 1 :]]), words[middle]))
        return samples

    def test(self, model: nn.Module) -> list[Score]:
        """Perplexity of hidden tokens of the test text."""
        if self.run.corpus.test is None:
            return []
        masking = self.run.settings.masking
        return self.perplexity(model, MaskedBatches(self.open("test"), masking), f"masked:{masking.share:g}")

    def pipeline(self, model: nn.Module) -> MaskFiller:
        assert isinstance(model, BidirectionalEncoder)
        return MaskFiller(model, self.tokenizers.source)

    @property
    def title(self) -> str:
        return "Transformer, masked language model"


def _choice(preset: str, *, tokens: int, peak_rate: float, steps: int) -> dict[str, Any]:
    return {
        "preset": preset,
        "masking": {"tokens": tokens},
        "training": {
            "schedule": {"kind": "linear", "peak_rate": peak_rate, "warmup_steps": min(steps // 10, 10_000)},
            "optimizer": {"weight_decay": 0.01},
            "steps": steps,
            "clip_norm": 1.0,
        },
        "validation": {"every": max(steps // 10, 1)},
    }
