"""`regard train`: learn a model from text."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from regard.errors import UserError
from regard.recipes import merge, parse_overrides, read_yaml

if TYPE_CHECKING:
    from regard.runs.settings import RunSettings

log = logging.getLogger("regard")

USAGE = "Usage: regard train [RECIPE.yaml] [OPTIONS] [--SECTION.KEY VALUE ...]"


def train(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    source: Path | None = None,
    target: Path | None = None,
    dev_source: Path | None = None,
    dev_target: Path | None = None,
    test_source: Path | None = None,
    test_target: Path | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    verify_resume: int | None = None,
    on_divergence: Literal["stop", "lower-rate", "full-precision"] | None = None,
    show: Annotated[bool, Parameter(negative="")] = False,
    plan: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Train a model, from text files or by a recipe; interrupted training goes on where it was.

    Two parallel files are enough for translation: the rest is chosen from their size, and said. A recipe is a YAML file
    of settings; each of them can be given as an option too, such as `--model.d-model 256` or `--training.steps 5000`.
    With `--show` all settings are printed, with nothing done; with `--plan` what the run will take: text in numbers,
    parameters, memory and hours, from half a minute of trying.

    Other tasks are chosen by `--task`: language-model and masked-language-model learn from one text,
    text-classification from texts and labels (two files, or one of text, tab, label), token-classification from a file
    of a word and its label a line. With `--initial MODEL` the run goes on from a model that has learned already; its
    vocabulary can be made longer. Further text is mixed in by `--data.mix`, by weight and with a tag.

    Examples:

        regard train --source text.en --target text.de --out runs/mine

        regard train --source text.en --target text.de --out runs/varied --data.subword-dropout 0.1

        regard train --source text.en --target text.de --out runs/agreeing --training.r-drop 5 --training.ema 0.999

        regard train recipes/ui-strings.yaml --out runs/ui --training.steps 1000

        regard train recipes/ui-strings.yaml --out runs/ui --plan

        regard train --resume runs/mine --training.steps 20000

        regard train --resume runs/mine --verify-resume 20

        regard train --resume runs/mine --on-divergence lower-rate

        regard train --source a.en --target a.de --out runs/more --data.mix '[{source: b.en, target: b.de, tag: bt}]'

        regard train --initial runs/mine --extend-vocabulary 500 --source new.en --target new.de --out runs/tuned

        regard train --task language-model --source book.txt --out runs/book

        regard train --task text-classification --initial runs/encoder --source labelled.tsv --out runs/labels

    Parameters
    ----------
    source
        Text to translate from, one sentence a line (plain or gzip); or, without --target, tab-separated pairs. For
        other tasks: the text.
    target
        Its translations, or labels, line by line.
    dev_source
        Text for validation; without it some of the training text is held out.
    dev_target
        Its translations, or labels.
    test_source
        Text to measure the model on at the end.
    test_target
        Its translations, or labels.
    out
        Directory of the run, with the model in `OUT/model` at the end. Default: runs/NAME-OF-RECIPE.
    resume
        Go on with the run in this directory.
    verify_resume
        Do so many steps of the run that --resume names again, and compare every bit of weights, optimizer and random
        numbers: with the checkpoints that it wrote, where one stands so few steps before the last; else the next steps
        twice, once with a stop in the middle. Nothing in its directory changes; exit status 1 if anything differs.
    on_divergence
        What follows a loss that explodes or is no number. stop: the run ends and names the step and the part of the
        model where it began (the default). lower-rate: it goes back to the last good checkpoint, and on from there at
        half the rate. full-precision: it goes back and computes in float32, and then too at half the rate.
    show
        Print the settings and stop.
    plan
        Prepare the text, try each stage of the run for some seconds, print what it will need and how long it will take,
        and stop. What cannot fit into memory is refused, with what to change. The prepared text stays in the run's
        directory for the run, where `--out` or a recipe names one.
    """
    if verify_resume is not None and (resume is None or verify_resume < 1):
        raise UserError("--verify-resume needs a run and one step or more, as in --resume RUN --verify-resume 20")
    recipe, overrides = _words(words)
    if on_divergence is not None:
        overrides = merge(overrides, {"training": {"on_divergence": on_divergence}})
    files = _files(train=(source, target), dev=(dev_source, dev_target), test=(test_source, test_target))
    if resume is not None:
        if recipe or files or out:
            raise UserError("--resume goes on with a run as it was begun: leave out the recipe, --out and all files")
        from regard.runs.run import load_settings

        settings = load_settings(resume, overrides)
        directory: Path | None = resume
    else:
        values = merge(read_yaml(recipe) if recipe else {}, merge(files, overrides))
        if not values.get("data"):
            raise UserError("train what? give a recipe, or --source and --target (regard train --help has examples)")
        settings = _settings(values, recipe)
        directory = None
    if show:
        from regard.runs.tasks import written

        print(written(settings), end="")
        return
    if resume is not None and verify_resume is not None:
        from regard.runs.verify import verify

        verify(resume, settings, verify_resume, partial(print, flush=True))
        return
    if plan:
        named = directory or (_directory(out, recipe) if out or recipe else None)
        _plan(named, settings)
        return
    if directory is None:
        directory = _directory(out, recipe)

    from regard.runs.run import train as run
    from regard.training.terminal import TerminalView

    view = TerminalView()
    if run(directory, settings, view, view.say) is None:
        raise SystemExit(130)  # stopped by Ctrl-C, with all saved


def _plan(directory: Path | None, settings: RunSettings) -> None:
    from regard.inspection.costs import parameters_by_part
    from regard.runs.plan import plan
    from regard.training.terminal import TerminalView

    made = plan(directory, settings, parameters_by_part, TerminalView().say)
    print(*made.lines(), sep="\n")


def _words(words: tuple[str, ...]) -> tuple[Path | None, dict[str, Any]]:
    """The recipe, when the first word is one, and the settings given as options."""
    if words and not words[0].startswith("--"):
        return Path(words[0]), parse_overrides(words[1:])
    return None, parse_overrides(words)


def _files(**parts: tuple[Path | None, Path | None]) -> dict[str, Any]:
    data = {}
    for name, (source, target) in parts.items():
        prefix = "" if name == "train" else f"{name}-"
        if target is not None and source is None:
            raise UserError(f"--{prefix}target needs --{prefix}source beside it")
        if source is not None:
            data[name] = {"source": str(source), "target": None if target is None else str(target)}
    return {"data": data} if data else {}


def _settings(values: dict[str, Any], recipe: Path | None) -> RunSettings:
    """Resolved settings; without a recipe or preset, what is not given is chosen from the size of the corpus."""
    from regard.runs.settings import DataSettings
    from regard.runs.tasks import choices, resolve, task_of

    origin = f"{recipe} with the options" if recipe else "command line"
    if recipe or "preset" in values:
        return resolve(values, origin)
    task = task_of(values)
    resolve(merge(choices(values, 1), values), origin)  # a mistake is known before the corpus is read
    size = task.size(task.corpus(DataSettings.parse(values["data"], origin)))
    settings = resolve(merge(choices(values, size), values), origin)
    log.info("%s", task.describe(settings, size))
    return settings


def _directory(out: Path | None, recipe: Path | None) -> Path:
    if out is not None:
        return out
    if recipe is None:
        raise UserError("--out is missing: the directory where the run is to live, such as --out runs/mine")
    return Path("runs") / recipe.stem
