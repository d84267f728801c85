"""An encoder-decoder as a Python object: `Translator`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch

from regard.data.shortlist import Shortlist
from regard.errors import UserError
from regard.evaluation.alignment import Alignment, align
from regard.evaluation.scoring import PairScore, score
from regard.model import store
from regard.model.transformer import EncoderDecoder
from regard.pipelines.directory import PATIENCE, ModelDirectory, Pipeline, listed
from regard.pipelines.passages import Order, Passages
from regard.search import engine
from regard.search.bayes import Utility
from regard.search.ensemble import Ensemble
from regard.search.executors import Choice, Executor, NativeExecutor, fastest
from regard.search.requests import Request
from regard.search.settings import SamplingSettings, SearchSettings
from regard.search.trouble import Mended
from regard.text.tokenizer import TokenizerPair


class Translator(Pipeline):
    """Translates texts. Threads may share one: a call changes nothing on it.

    Search options of each call are the fields of `SearchSettings` (beam, alpha, nbest, ...); those not given are the
    model directory's.
    """

    kinds = ("encoder-decoder",)

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizers: TokenizerPair,
        settings: SearchSettings | None = None,
        workers: int = 1,
        languages: store.Languages | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        """From the parts; `load` reads them from a directory. The model is put into evaluation mode.

        With several `workers`, so many batches of a call are worked on at once, each by a thread.
        """
        self.model: EncoderDecoder = model.eval()
        self.tokenizers: TokenizerPair = tokenizers
        self.settings: SearchSettings = settings or SearchSettings()
        self.workers = workers
        self.languages = languages or store.Languages()
        self.shortlist = shortlist
        self.others: tuple[Translator, ...] = ()
        """The other members of an ensemble."""
        self._chosen: tuple[Executor, str] | None = None

    @classmethod
    def load(
        cls, path: str | Path | Sequence[str | Path], device: str | torch.device | None = None, workers: int = 1
    ) -> Self:
        """As `regard.load`, for this kind of model only; several directories are an ensemble (see `together`).

        Raises:
            UserError: as `regard.load`, or a model is of another kind, or the vocabularies differ.
        """
        first, *others = [path] if isinstance(path, str | Path) else path
        translator = super().load(first, device, workers)
        return translator.together(*(cls.load(other, device) for other in others))

    def together(self, *others: Translator) -> Self:
        """Let other models search with this one: the probability of a token is the mean of all.

        Settings, languages and workers are those of this one.

        Raises:
            UserError: the vocabularies differ, so that one's tokens mean nothing to another.
        """
        for number, other in enumerate(others, start=2):
            if other.tokenizers.fingerprint != self.tokenizers.fingerprint:
                raise UserError(
                    f"model {number} of the ensemble has another vocabulary than the first; train the models of an "
                    "ensemble with one tokenizer (data.tokenizer of a recipe)"
                )
        self.others, self._chosen = others, None
        return self

    def use(
        self,
        executor: Choice = "auto",
        precision: Literal["auto", "float32", "int8"] = "auto",
        shortlist: bool = True,
        invariant: bool = False,
    ) -> Self:
        """Say what is to carry the model out, instead of the fastest that can; see `regard.search.executors.fastest`.

        To be called again after the model's weights were changed, or moved to another device.

        Args:
            shortlist: whether the model's own shortlist is used, where it has one and the executor can.
            invariant: whether a text must give the same bits alone and among others, whatever carries the model out.

        Raises:
            UserError: it is not possible.
        """
        if self.others:
            each = [fastest(member.model, executor, precision, invariant=invariant) for member in self._members]
            self._chosen = Ensemble([chosen for chosen, _ in each], alone=invariant), each[0][1]
        else:
            listed = self.shortlist if shortlist else None
            self._chosen = fastest(self.model, executor, precision, listed, invariant)
        return self

    @property
    def executor(self) -> Executor:
        """What carries the model out in a search."""
        if self._chosen is None:
            self.use()
        assert self._chosen is not None
        return self._chosen[0]

    def explain(self) -> str:
        """What carries the model out, and why."""
        about = self.executor.about
        assert self._chosen is not None
        workers = f"{self.workers} {'thread works' if self.workers == 1 else 'threads work'} on texts side by side"
        company = "the same bits in any company"
        if self.executor.alone:
            company += ", for which each text is searched for by itself: on a CPU at about a sixth of the speed"
        elif not isinstance(self.executor, NativeExecutor):
            company = "bits may differ with what is translated beside a text"
        return f"{about}: {self._chosen[1]}; {workers}; {company}"

    @classmethod
    def of(cls, directory: ModelDirectory) -> Self:
        settings = directory.settings(SearchSettings)
        assert isinstance(directory.model, EncoderDecoder)
        languages, shortlist = directory.config.languages, directory.shortlist
        translator = cls(directory.model, directory.tokenizers, settings, languages=languages, shortlist=shortlist)
        translator.alignment = directory.config.alignment
        return translator

    def translate(self, texts: str | Request | Sequence[str | Request], **options: Any) -> list[str]:
        """The best translation of each text, in order. A single one counts as a list of one.

        A `Request` is a text with wishes about its translation. Options are the fields of `SearchSettings`, and
        `sampling` and `mbr` as for `stream`.

        Raises:
            UserError: an option is unknown or has an impossible value.
        """
        return [translation.best.text for translation in self.hypotheses(texts, **options)]

    def hypotheses(self, texts: str | Request | Sequence[str | Request], **options: Any) -> list[Mended]:
        """As `translate`, with all that was found: `nbest` candidates with scores, token ids and whether they ended.

        `trouble` says what is wrong with the best one, and `remedy` how it was found where the first search went wrong.
        """
        requests: Sequence[str | Request] = [texts] if isinstance(texts, str | Request) else texts
        return list(self.stream(requests, patience=None, name="text", **options))

    def stream(
        self,
        texts: Iterable[str | Request],
        *,
        sampling: SamplingSettings | None = None,
        mbr: Literal["chrf", "bleu"] | None = None,
        patience: float | None = PATIENCE,
        name: str = "input",
        **options: Any,
    ) -> Iterator[Mended]:
        """Translate texts as they come, in order, without holding all of them; see `regard.pipelines.passages`.

        Args:
            sampling: draw `sampling.n` translations of each text, token by token, instead of searching for the best.
            mbr: of what was drawn, or what the beam found, that is best which is most like all of it by this metric.
                For n candidates the metric is computed n * n times.
            texts: read ahead by a thread when `patience` is given.
            patience: what has come is translated when nothing more has for so many seconds; None waits for about
                a thousand texts at a time, which is a little faster for input that is there already.
            name: stands in warnings before the number of the line.
        """
        settings = self._settings(options)
        if sampling is not None:  # what was drawn is not drawn again
            settings = settings.model_copy(update={"retry": False})
        search = partial(
            engine.translate,
            self.executor,
            self.tokenizers,
            sampling=sampling,
            utility=None if mbr is None else self._utility(mbr),
            readers=[member.model for member in self._members],
            workers=self.workers,
        )
        frame = len(self.tokenizers.source_begin) + len(self.tokenizers.source_end)
        reads = self.executor.settings.source_reach - frame
        writes = self.executor.settings.max_length - len(self.tokenizers.target_begin)
        order: Order = "scores" if mbr is None and sampling is None else "drawn" if mbr is None else "chosen"
        passages = Passages(search, self.tokenizers, settings, reads, writes, self.languages, order)
        return passages.translate(texts, patience, name)

    def align(self, sources: str | Sequence[str], targets: str | Sequence[str]) -> list[Alignment]:
        """Which words of each source and its target stand for each other, whatever the target came from.

        Raises:
            UserError: there are not as many sources as targets.
        """
        return list(self.align_stream(_paired(sources, targets)))

    def align_stream(
        self,
        pairs: Iterable[tuple[str, str]],
        batch_tokens: int = 4096,
        patience: float | None = None,
        name: str = "pairs",
    ) -> Iterator[Alignment]:
        """Align (source, target) pairs in order, without holding all of them; see `regard.evaluation.alignment`."""
        how: dict[str, Any] = {"patience": patience, "workers": self.workers, "name": name}
        return align(self.model, self.tokenizers, pairs, self.alignment, batch_tokens, **how)

    def score(self, sources: str | Sequence[str], targets: str | Sequence[str]) -> list[PairScore]:
        """How probable the model finds each target as the translation of its source.

        Raises:
            UserError: there are not as many sources as targets.
        """
        return list(self.score_stream(_paired(sources, targets)))

    def score_stream(
        self, pairs: Iterable[tuple[str, str]], batch_tokens: int = 4096, name: str = "pairs"
    ) -> Iterator[PairScore]:
        """Score (source, target) pairs in order, without holding all of them; see `regard.evaluation.scoring.score`.

        Raises:
            UserError: this is an ensemble.
        """
        if self.others:
            raise UserError("an ensemble searches and does not score; score with each of its models by itself")
        return score(self.model, self.tokenizers, pairs, batch_tokens, workers=self.workers, name=name)

    def _utility(self, metric: Literal["chrf", "bleu"]) -> Utility:
        if metric not in ("chrf", "bleu"):
            raise UserError(f"mbr = {metric!r} is not a metric to choose by; take chrf or bleu")
        from regard.evaluation.metrics import SentenceScore  # with sacreBLEU, which no other translation needs

        return SentenceScore(metric, self.languages.target)

    @property
    def _members(self) -> tuple[Translator, ...]:
        return self, *self.others

    def _settings(self, options: dict[str, Any]) -> SearchSettings:
        return SearchSettings.parse({**self.settings.model_dump(), **options}, "search options")


def _paired(sources: str | Sequence[str], targets: str | Sequence[str]) -> Iterator[tuple[str, str]]:
    sources, targets = listed(sources), listed(targets)
    if len(sources) != len(targets):
        raise UserError(f"{len(sources)} sources and {len(targets)} targets: each source needs one target")
    return zip(sources, targets, strict=True)
