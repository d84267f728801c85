"""`regard inspect`: what a model or preset consists of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.model.store import ModelConfig


def inspect(model: str, *, vocabulary: int = 37_000) -> None:
    """Show what a model consists of: its settings, and its parameters by part.

    MODEL is a model directory, that of a training run, or the name of a preset: the paper's `paper-base` and
    `paper-big`, the rows of its Table 3 (`paper-A1` to `paper-E`), or `tiny` and `small` for small data.

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
        sizes = store.Vocabulary(source=vocabulary, target=vocabulary)
        config = store.ModelConfig(vocabulary=sizes, model=chosen.model)
        printed = chosen.printed_millions
        title = f"{model}: {chosen.about}"
    settings = config.model
    parts = parameters_by_part(store.blueprint(config))
    total = sum(part.parameters for part in parts)

    console = Console()
    console.print(title, highlight=False, markup=False)
    for name, value in {**dict(settings), "d_key": settings.key_width, "d_value": settings.value_width}.items():
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


def _vocabulary(config: ModelConfig) -> str:
    sides = {"source": config.vocabulary.source, "target": config.vocabulary.target}
    return "vocabulary " + ", ".join(f"{size:,} {side}" for side, size in sides.items() if size is not None)
