"""`regard inspect`: what a model or preset consists of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.model.presets import Preset
    from regard.model.store import ModelConfig


def inspect(model: str, *, vocabulary: int = 37_000) -> None:
    """Show what a model consists of: its settings, and its parameters by part.

    MODEL is a model directory, that of a training run, or the name of a preset: the paper's `paper-base` and
    `paper-big`, the rows of its Table 3 (`paper-A1` to `paper-E`), `tiny` and `small` for small data; decoders
    (`nanogpt-cpu`, `tiny-lm`, `small-lm`, `base-lm`) and encoders (`tiny-encoder`, `small-encoder`, `bert-base`,
    `digits`).

    Of the settings, those are shown that every model has, and what is not as in the paper.

    Examples:

        regard inspect paper-base

        regard inspect runs/mine/model

    Parameters
    ----------
    model
        Model directory or name of a preset.
    vocabulary
        Shared vocabulary with which a preset is counted. The paper's English-German one has about 37,000.
    """
    if not 1 <= vocabulary <= 2**24:
        raise UserError(f"--vocabulary {vocabulary}: should be from 1 to {2**24}")
    from rich.console import Console
    from rich.table import Table

    from regard.inspection.costs import parameters_by_part
    from regard.model import store
    from regard.model.presets import PRESETS, preset

    printed = None
    if model not in PRESETS and (Path(model).exists() or os.sep in model):
        config = store.read_config(store.find(Path(model)))
        title = model
    else:
        chosen = preset(model)
        config = _config(chosen, vocabulary)
        printed = chosen.printed_millions
        title = f"{model}: {chosen.about}"
    parts = parameters_by_part(store.blueprint(config))
    total = sum(part.parameters for part in parts)

    console = Console()
    console.print(title, highlight=False, markup=False)
    for name, value in _settings(config).items():
        console.print(f"  {name}: {value}", highlight=False, markup=False)
    table = Table("part", "parameters", "share", title=_vocabulary(config))
    for column in table.columns[1:]:
        column.justify = "right"
    for part in parts:
        table.add_row(part.name, f"{part.parameters:,}", f"{part.parameters / total:.1%}")
    table.add_section()
    table.add_row("all", f"{total:,}", "")
    console.print(table)
    if printed is not None:
        console.print(f"The paper prints {printed} million; here {total / 1e6:.1f} million.", highlight=False)


def _config(chosen: Preset, vocabulary: int) -> ModelConfig:
    """The configuration of a preset whose sides have so many token ids."""
    from regard.model.store import ModelConfig, Vocabulary

    reads = chosen.family != "causal-decoder" and chosen.model.input == "tokens"
    sizes = Vocabulary(source=vocabulary if reads else None, target=vocabulary if chosen.family != "encoder" else None)
    return ModelConfig(family=chosen.family, vocabulary=sizes, model=chosen.model)


ALWAYS = {
    *("d_model", "d_ff", "heads", "d_key", "d_value", "encoder_layers", "decoder_layers", "positions", "max_length"),
    *("norm", "norm_placement", "feed_forward", "dropout", "tie"),
}


def _settings(config: ModelConfig) -> dict[str, object]:
    """The settings that say something about this model."""
    model = config.model
    missing = {"causal-decoder": "encoder_layers", "encoder": "decoder_layers"}.get(config.family)
    defaults = type(model)()
    values = {**dict(model), "d_key": model.key_width, "d_value": model.value_width}
    return {
        name: value
        for name, value in values.items()
        if name != missing and (name in ALWAYS or value != getattr(defaults, name))
    }


def _vocabulary(config: ModelConfig) -> str:
    sides = {"source": config.vocabulary.source, "target": config.vocabulary.target}
    sizes = [f"{size:,} {side}" for side, size in sides.items() if size is not None]
    return f"{config.family}, vocabulary {', '.join(sizes)}" if sizes else config.family
