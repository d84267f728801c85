"""The end of a run: the best weights as a model directory, measured, with a card that says what it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from regard.data.corpus import open_pairs
from regard.errors import JobError
from regard.evaluation.metrics import Score
from regard.model import store
from regard.pipelines import Translator, write_directory
from regard.runs.decoding import Decoding
from regard.runs.prepare import Corpus, Prepared, Say
from regard.runs.settings import RunSettings
from regard.text.lines import write_lines
from regard.training.checkpoint import average, checkpoints, load_checkpoint
from regard.training.keeping import CheckpointKeeper
from regard.training.terminal import duration
from regard.training.trainer import Trainer
from regard.training.validation import Validation, better
from regard.version import __version__


@dataclass(frozen=True)
class Candidate:
    """Weights that might be the final ones."""

    name: str
    weights: dict[str, Tensor]


def export(
    directory: Path,
    settings: RunSettings,
    trainer: Trainer,
    translator: Translator,
    prepared: Prepared,
    corpus: Corpus,
    decoding: Decoding,
    say: Say,
) -> dict[str, float]:
    """Choose the final weights by validation, write `directory/model`, and score it on the test text.

    The candidates are the best checkpoint and the average of the last ones (section 6.1). Returns the scores by name.
    """
    chosen, validation = _choose(directory, settings, trainer, decoding)
    say(f"the model: {chosen}")
    model_directory = directory / "model"
    scores: list[Score] = []
    translator.model.eval()
    if corpus.test is not None:
        scores = _test(directory, settings, trainer, corpus, decoding, say)
    card = _card(settings, prepared, corpus, trainer, chosen, validation, scores)
    write_directory(model_directory, translator, card)
    result = {"validation": validation, "test": {score.name: score.value for score in scores}}
    write_lines(directory / "result.json", [json.dumps(result)])
    say(f"written to {model_directory}; translate with: regard translate {model_directory} 'some text'")
    return result["test"] or validation


def _choose(
    directory: Path, settings: RunSettings, trainer: Trainer, decoding: Decoding
) -> tuple[str, dict[str, float]]:
    """Load into the trainer's model the candidate that validates best; return its name and scores."""
    metric = settings.validation.metric
    shown = next(each for each in trainer.listeners if isinstance(each, Validation))
    validation = Validation(shown.settings, shown.batches, decoding.measure)
    best_name, best_weights = "", None
    best_scores: dict[str, float] = {}
    for candidate in _candidates(directory, settings, trainer):
        store.assign(trainer.model, candidate.weights, candidate.name)
        scores = validation.scores(trainer)
        if best_weights is None or better(metric, scores[metric], best_scores.get(metric)):
            best_name, best_scores, best_weights = candidate.name, scores, candidate.weights
    if best_weights is None:
        raise JobError(f"{directory}: has no usable checkpoint to make a model from")
    store.assign(trainer.model, best_weights, best_name)
    return best_name, best_scores


def _candidates(directory: Path, settings: RunSettings, trainer: Trainer) -> list[Candidate]:
    """The best checkpoint, or without validation scores the last one, and the average of the last ones."""
    paths = checkpoints(directory / "checkpoints")
    keeper = next(each for each in trainer.listeners if isinstance(each, CheckpointKeeper))
    steps = [step for step in keeper.best() if step in paths] or list(paths)[-1:]
    found = [Candidate(f"step {step:,}, the best by validation", load_checkpoint(paths[step]).model) for step in steps]
    last = list(paths.values())[-settings.checkpoints.keep_last :]
    if len(last) > 1:
        found.append(Candidate(f"the average of the last {len(last)} checkpoints", average(last)))
    return found


def _test(
    directory: Path, settings: RunSettings, trainer: Trainer, corpus: Corpus, decoding: Decoding, say: Say
) -> list[Score]:
    """Translate the test text into `test.txt` and score it."""
    if corpus.test is None:
        return []
    pairs = list(open_pairs(corpus.test.source, corpus.test.target))
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    outputs, scores = decoding.score(trainer.model, sources, references, settings.search)
    write_lines(directory / "test.txt", outputs)
    decoding.show(sources, outputs, references)
    for score in scores:
        say(f"test: {score.name} {score.value:.1f} ({score.signature})")
    return scores


def _card(
    settings: RunSettings,
    prepared: Prepared,
    corpus: Corpus,
    trainer: Trainer,
    chosen: str,
    validation: dict[str, float],
    scores: list[Score],
) -> str:
    """The model card."""
    languages = f"{settings.data.source_language or 'source'} → {settings.data.target_language or 'target'}"
    parameters = sum(tensor.numel() for tensor in store.parameters(trainer.model).values())
    progress = trainer.progress
    rows = [f"| {score.name} | {score.value:.2f} | `{score.signature}` |" for score in scores]
    test = ["", "## Test", "", "| metric | score | signature |", "|---|---|---|", *rows] if rows else []
    return "\n".join(
        [
            f"# Transformer, {languages}",
            "",
            f"An encoder-decoder of {parameters / 1e6:.1f} million parameters, trained with regard {__version__}.",
            "",
            "```python",
            "import regard",
            "",
            'regard.load("path/of/this/directory").translate(["..."])',
            "```",
            "",
            "## Data",
            "",
            f"{corpus.description} {len(prepared.train):,} pairs for training, {len(prepared.dev):,} for validation.",
            "",
            "## Training",
            "",
            f"{progress.step:,} steps, {progress.target_tokens:,} target tokens, {duration(progress.seconds)} of "
            f"training. Weights: {chosen}.",
            "",
            "Validation: " + ", ".join(f"{name} {value:.2f}" for name, value in validation.items()) + ".",
            *test,
            "",
            "## Settings",
            "",
            "```yaml",
            settings.to_yaml().rstrip(),
            "```",
            "",
        ]
    )
