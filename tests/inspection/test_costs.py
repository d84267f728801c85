"""Parameters by part, against a count by hand."""

from __future__ import annotations

from regard.inspection.costs import parameters_by_part
from regard.model.presets import preset
from regard.model.settings import ModelSettings
from regard.model.store import ModelConfig, Vocabulary, blueprint
from regard.model.transformer import Model


def model(settings: ModelSettings, source: int, target: int) -> Model:
    return blueprint(ModelConfig(vocabulary=Vocabulary(source=source, target=target), model=settings))


def test_the_base_model_by_part() -> None:
    counts = {
        part.name: part.parameters for part in parameters_by_part(model(preset("paper-base").model, 37_000, 37_000))
    }
    projections = 4 * (512 * 512 + 512)
    feed_forward = 2 * 512 * 2048 + 2048 + 512
    assert counts == {
        "embeddings and output": 37_000 * 512,
        "encoder: self-attention": 6 * projections,
        "encoder: feed-forward": 6 * feed_forward,
        "encoder: normalisation": 6 * 2 * 1024,
        "decoder: self-attention": 6 * projections,
        "decoder: attention over the encoder": 6 * projections,
        "decoder: feed-forward": 6 * feed_forward,
        "decoder: normalisation": 6 * 3 * 1024,
    }
    assert sum(counts.values()) == 63_082_496


def test_untied_matrices_and_learned_positions_are_counted_apart() -> None:
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, tie="none", positions="learned", max_length=50)
    counts = {part.name: part.parameters for part in parameters_by_part(model(settings, 100, 200))}
    assert counts["embeddings and output"] == (100 + 200 + 200) * 16
    assert counts["positions"] == 2 * 50 * 16
