"""`regard classify`: labels of texts, or of their words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from regard.cli.starting import importing
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.pipelines.classifier import Classifier


def classify(
    model: Path,
    /,
    *text: str,
    input: Annotated[Path | None, Parameter(alias="-i")] = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    best: int = 1,
    device: str | None = None,
) -> None:
    """Label texts, or the words of texts, with a model that has learned the labels.

    Each line of input gives one line of output, in order: label, tab, probability; with --best above 1 further labels
    and probabilities follow. An empty line stays empty.

    Where words have labels, each word is a line: word, tab, label, tab, probability; an empty line ends each text.

    Examples:

        regard classify runs/kinds "Failed to connect" "Battery level"

        regard classify runs/kinds --input texts.txt --output labels.txt

        cat sentences.txt | regard classify runs/names

    Parameters
    ----------
    model
        Model directory, or that of a training run.
    text
        Texts to label, instead of a file or standard input.
    input
        File with a text a line; plain or gzip, UTF-8.
    output
        File for the labels. It appears when all are there. Default: standard output.
    best
        Labels to show for each text, the most probable first.
    device
        Where to compute: cpu, cuda, cuda:1, ... Default: a GPU if there is one.
    """
    if best < 1:
        raise UserError(f"--best {best}: should be at least 1")
    with importing():
        from regard.cli.inputs import inputs
        from regard.cli.lines import line_writer
        from regard.pipelines.classifier import Classifier

    given, name, patience = inputs(text, input, output, "Type a line to have it labelled")
    classifier = Classifier.load(model, device)
    if classifier.labels_words and best > 1:
        raise UserError(f"--best {best}: words get one label each; leave it out")
    if classifier.labels_words:
        lines = _words(classifier, given, patience)
    else:
        lines = _texts(classifier, given, patience, name, best)
    with line_writer(output) as write:
        for line in lines:
            write(line)


def _texts(classifier: Classifier, texts: Iterable[str], patience: float | None, name: str, best: int) -> Iterator[str]:
    for result in classifier.stream(texts, patience=patience, name=name):
        yield "\t".join(f"{label.name}\t{label.probability:.4f}" for label in result.labels[:best])


def _words(classifier: Classifier, texts: Iterable[str], patience: float | None) -> Iterator[str]:
    for words in classifier.stream_words(texts, patience=patience):
        for word in words:
            yield f"{word.text}\t{word.label.name}\t{word.label.probability:.4f}"
        yield ""
