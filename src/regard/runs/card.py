"""The model card of a run's model: what it is, what it learned from, what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from regard.evaluation.metrics import Score
from regard.model import store
from regard.runs.task import Task
from regard.runs.tasks import written
from regard.training.terminal import duration
from regard.training.trainer import Progress
from regard.version import __version__

FAMILIES = {"encoder-decoder": "An encoder-decoder", "causal-decoder": "A causal decoder", "encoder": "An encoder"}


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    chosen: str
    """Which weights were taken."""
    validation: dict[str, float]
    test: Sequence[Score]
    progress: Progress


def card(task: Task, model: nn.Module, outcome: Outcome) -> str:
    """The card, as Markdown."""
    settings, progress = task.run.settings, outcome.progress
    parameters = sum(tensor.numel() for tensor in store.parameters(model).values())
    rows = [f"| {score.name} | {score.value:.2f} | {f'`{score.signature}`' * bool(score.signature)} |"
            for score in outcome.test]  # fmt: skip
    test = ["", "## Test", "", "| metric | score | signature |", "|---|---|---|", *rows] if rows else []
    initial = f" It went on from the model in `{settings.initial}`" if settings.initial is not None else ""
    adapters = f", by adapters of rank {settings.adapters.rank}" if settings.adapters is not None else ""
    return "\n".join(
        [
            f"# {task.title}",
            "",
            f"{FAMILIES[task.model().family]} of {parameters / 1e6:.1f} million parameters, "
            f"trained with regard {__version__}.{initial}{adapters}{'.' * bool(initial)}",
            "",
            "```python",
            "import regard",
            "",
            f'regard.load("path/of/this/directory").{task.python}',
            "```",
            "",
            "## Data",
            "",
            f"{task.run.corpus.description} {task.amount} for training.",
            "",
            "## Training",
            "",
            f"{progress.step:,} steps, {progress.target_tokens:,} target tokens, {duration(progress.seconds)} of "
            f"training. Weights: {outcome.chosen}.",
            "",
            "Validation: " + ", ".join(f"{name} {value:.2f}" for name, value in outcome.validation.items()) + ".",
            *test,
            "",
            "## Settings",
            "",
            "```yaml",
            written(settings).rstrip(),
            "```",
            "",
        ]
    )
