"""What `regard translate` and `regard bulk` share: how texts are translated, and what is written of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from regard.cli.searching import Searching
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.pipelines import Translator
    from regard.pipelines.journal import Answer
    from regard.search.engine import Translation
    from regard.search.settings import SearchSettings


@Parameter(name="*")
@dataclass(frozen=True)
class Translating:
    """How texts are translated, and what is written of it: all that a process has to know to do it.

    Parameters
    ----------
    with_models
        Another model with the same vocabulary, whose probabilities are averaged with MODEL's; may be given several
        times.
    scores
        Put the score (log-probability with length penalty) and a tab before each translation.
    align
        Put a tab after each translation, and which words stand for each other: 0-0 1-2 links the first words of both
        texts, and the second of the source with the third of the translation.
    executor
        What computes: the compiled decoder (native), or PyTorch with CUDA graphs on a GPU (graphs) or without (torch).
        Default: the fastest that can.
    precision
        Of the compiled decoder: int8 is faster on most CPUs and costs next to no quality. Default: the faster one.
    shortlist
        Choose among the tokens that may translate those of the source, where the model has a list of them: faster.
    """

    searching: Searching = field(default_factory=Searching)
    with_models: Annotated[
        tuple[Path, ...], Parameter(name="--with", consume_multiple=False, negative="", show_default=False)
    ] = ()
    scores: Annotated[bool, Parameter(negative="")] = False
    align: Annotated[bool, Parameter(negative="")] = False
    executor: Literal["auto", "native", "graphs", "torch"] = "auto"
    precision: Literal["auto", "float32", "int8"] = "auto"
    shortlist: bool = True

    def prepare(self, translator: Translator, invariant: bool = False) -> SearchSettings:
        """Let the model be carried out as asked for; its settings, with the options laid on top.

        Raises:
            UserError: that is not possible, or options contradict each other.
        """
        from regard.search.settings import SearchSettings

        translator.use(self.executor, self.precision, self.shortlist, invariant)
        given = {**translator.settings.model_dump(), **self.searching.settings()}
        settings = SearchSettings.parse(given, "search options")
        if self.align and self.several(settings):
            raise UserError(
                "--align goes with one translation of each line; leave out --nbest and --samples, or --align"
            )
        return settings

    def resolved(self) -> Translating:
        """The same, wherever a process may stand."""
        return replace(self, with_models=tuple(path.resolve() for path in self.with_models))

    def several(self, settings: SearchSettings) -> bool:
        """Whether a text may have several translations."""
        sampling = self.searching.sampling()
        return settings.nbest > 1 or (sampling is not None and sampling.n > 1 and self.searching.mbr is None)

    def makeup(self, model: Path, translator: Translator) -> dict[str, object]:
        """What carries a job out, and has to be the same wherever it is worked on."""
        from regard.cli.journaled import executor_of
        from regard.pipelines.directory import fingerprint

        others = list(map(fingerprint, self.with_models))
        return {"model": fingerprint(model), "with": others, "executor": executor_of(translator)}

    def job(self, settings: SearchSettings) -> dict[str, object]:
        """What is asked for."""
        return {**settings.model_dump(), **self.searching.wishes(), "scores": self.scores, "align": self.align}

    def answers(
        self, translator: Translator, settings: SearchSettings, texts: Iterable[str], name: str, patience: float | None
    ) -> Iterator[Answer]:
        """The translations of each text as lines. `name` and `patience`: as for `Translator.stream`."""
        from regard.evaluation.alignment import with_alignments
        from regard.pipelines.journal import Answer

        sampling, several = self.searching.sampling(), self.several(settings)
        how: dict[str, Any] = {"sampling": sampling, "mbr": self.searching.mbr, "patience": patience, "name": name}

        def translated(texts: Iterable[str]) -> Iterator[Translation]:
            return translator.stream(self.searching.requests(texts), **how, **self.searching.settings())

        if not self.align:
            for translation in translated(texts):
                yield Answer(tuple(self._lines(translation, several)), translation.best.finished)
            return
        link = partial(translator.align_stream, patience=patience, name=name)
        for translation, alignment in with_alignments(texts, translated, link):
            (line,) = self._lines(translation, several)
            yield Answer((f"{line}\t{alignment}",), translation.best.finished)

    def _lines(self, translation: Translation, several: bool) -> Iterator[str]:
        if several:
            for rank, candidate in enumerate(translation.candidates, start=1):
                yield f"{rank}\t{candidate.score:.4f}\t{candidate.text}"
        elif self.scores:
            yield f"{translation.best.score:.4f}\t{translation.best.text}"
        else:
            yield translation.best.text
