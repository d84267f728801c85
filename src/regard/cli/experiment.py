"""`regard experiment`: the paper's comparisons, carried out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from regard.errors import UserError
from regard.recipes import merge, parse_overrides, read_yaml

app = App(
    name="experiment",
    help="Carry out a comparison of the paper on your own text: `regard experiment baselines RECIPE.yaml --out DIR`.",
)


@app.command(usage="Usage: regard experiment baselines RECIPE.yaml --out DIR [OPTIONS] [--SECTION.KEY VALUE ...]")
def baselines(
    recipe: Path,
    /,
    *words: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    out: Path,
    minutes: float | None = None,
) -> None:
    """Train a Transformer, an LSTM with attention and a convolutional model of its size, and compare them (Table 2).

    All learn from the same batches of the same text, by the same trainer, and translate by the same search. The table
    is printed, and written to OUT as `results.md` and `results.json`. The same command again goes on where it was.

    Settings of the recipe can be given as options, such as `--training.steps 5000`. Those of one kind of model come
    after its name, such as `--lstm.training.schedule.peak-rate 0.002` or `--convolution.model.kernel 5`; the width
    `hidden` of LSTM and convolution is chosen so that the number of parameters is that of the Transformer, unless
    given.

    Example: `regard experiment baselines recipes/multi30k-tiny.yaml --out runs/baselines --minutes 10`

    Parameters
    ----------
    recipe
        YAML file of settings, as for `regard train`.
    out
        Directory of the comparison.
    minutes
        Each model makes as many updates as take about so long. Default: all make the recipe's `training.steps`.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise UserError(f"--minutes {minutes:g}: should be above 0")
    values = merge(read_yaml(recipe), parse_overrides(words))

    from regard.experiments.baselines import Comparison
    from regard.experiments.contenders import ContendersSettings
    from regard.runs.tasks import resolve
    from regard.training.terminal import TerminalView

    origin = f"{recipe} with the options"
    own = {name: values.pop(name) for name in ContendersSettings.model_fields if name in values}
    contenders = ContendersSettings.parse(own, origin)
    view = TerminalView()
    comparison = Comparison(out, resolve(values, origin), contenders, view, view.say, minutes)
    print(comparison.run(), end="")
