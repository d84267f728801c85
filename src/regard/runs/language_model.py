"""A causal language model: each token from those before it. Judged by its loss, and shown by what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from regard.data.packing import PackedBatch, PackedBatches
from regard.evaluation.metrics import Score
from regard.model import store
from regard.model.transformer import CausalDecoder
from regard.pipelines.generator import TextGenerator
from regard.runs.prepare import shown
from regard.runs.settings import RunSettings
from regard.runs.task import Run
from regard.runs.texts import TextTask
from regard.training.loss import LossSums, causal_loss

PROMPT = 16
"""About so many tokens of a validation text are given to the model to go on from."""


class LanguageModel(TextTask):
    """A decoder that goes on with a text."""

    family = "causal-decoder"
    metrics = ("loss",)
    options = TextTask.options | {"model.decoder_layers", "packing", "generation"}
    defaults: ClassVar[Mapping[str, Any]] = {
        "model": {"tie": "decoder"},
        "training": {"label_smoothing": 0.0},
        "generation": {"max_tokens": 60},
    }
    python = 'generate(["..."])'
    command = "regard generate MODEL 'some text'"

    @classmethod
    def choices(cls, size: int) -> dict[str, Any]:
        if size < 1_000_000:
            return _choice("tiny-lm", context=128, rows=16, peak_rate=0.003, steps=4_000, documents="file")
        if size < 50_000_000:
            return _choice("small-lm", context=256, rows=32, peak_rate=0.001, steps=30_000, documents="paragraphs")
        return _choice("base-lm", context=1_024, rows=64, peak_rate=0.0006, steps=200_000, documents="paragraphs")

    @classmethod
    def update(cls, settings: RunSettings) -> str:
        tokens = settings.packing.rows * settings.packing.context * settings.training.accumulate
        return f"{tokens:,} tokens (documents: {settings.data.documents})"

    @classmethod
    def mistake(cls, settings: RunSettings) -> str | None:
        context, reach = settings.packing.context, settings.model.max_length
        if context > reach:
            return f"packing.context = {context} needs a model.max_length of at least that, not {reach}"
        return super().mistake(settings)

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        settings = run.settings
        self.train = PackedBatches(self.texts, settings.packing, settings.training.seed)
        in_order = settings.packing.model_copy(update={"order": "packed"})
        self.dev = PackedBatches(self.dev_texts, in_order)

    def model(self) -> store.ModelConfig:
        sizes = store.Vocabulary(target=self.tokenizers.target.size)
        return store.ModelConfig(family="causal-decoder", vocabulary=sizes, model=self.run.settings.model)

    def loss(self, model: CausalDecoder, batch: PackedBatch) -> LossSums:
        training = self.run.settings.training
        return causal_loss(model, batch, training.label_smoothing, training.r_drop)

    def measure(self, model: nn.Module, show: bool = False) -> dict[str, float]:
        """Nothing beside the loss; what is shown goes on from pieces of validation text."""
        if show and self.run.settings.validation.samples:
            room = self.run.settings.model.max_length - 2 * PROMPT
            limit = max(1, min(room, self.run.settings.generation.max_tokens or room))
            prompts = self._prompts()
            texts = self.pipeline(store.unwrap(model)).generate(prompts, seed=1, n=1, max_tokens=limit)
            for prompt, text in zip(prompts, texts, strict=True):
                self.run.say(f"  {prompt} → {text}".replace("\n", " ⏎ ") + "\n")
        return {}

    def _prompts(self) -> list[str]:
        """Pieces of validation text, from the begin of a line where there is one; the same ones each time."""
        length = max(2, min(2 * PROMPT, self.run.settings.model.max_length // 2))
        texts, wanted = self.dev_texts, self.run.settings.validation.samples
        if len(texts) >= wanted:
            pieces = [texts.document(index)[:length] for index in shown(len(texts), wanted)]
        else:
            ids = texts.document(0)
            pieces = [ids[at : at + length] for at in shown(len(ids), wanted)]
        decoded = self.tokenizers.target.decode([piece.tolist() for piece in pieces])
        return [text[text.find("\n") + 1 :].rstrip() or text for text in decoded]

    def test(self, model: nn.Module) -> list[Score]:
        """Perplexity of the test text, in rows of the context that was trained with."""
        if self.run.corpus.test is None:
            return []
        packing = self.run.settings.packing.model_copy(update={"order": "packed"})
        return self.perplexity(model, PackedBatches(self.open("test"), packing), f"context:{packing.context}")

    def pipeline(self, model: nn.Module) -> TextGenerator:
        assert isinstance(model, CausalDecoder)
        return TextGenerator(model, self.tokenizers.target, self.run.settings.generation)

    @property
    def title(self) -> str:
        return "Transformer, language model"


def _choice(preset: str, *, context: int, rows: int, peak_rate: float, steps: int, documents: str) -> dict[str, Any]:
    return {
        "preset": preset,
        "data": {"documents": documents},
        "packing": {"context": context, "rows": rows},
        "training": {
            "schedule": {"kind": "cosine", "peak_rate": peak_rate, "warmup_steps": min(steps // 20, 1_000)},
            "optimizer": {"weight_decay": 0.1},
            "steps": steps,
            "clip_norm": 1.0,
        },
        "validation": {"every": max(steps // 10, 1), "patience": 5},
    }
