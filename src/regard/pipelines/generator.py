"""A decoder as a Python object: `TextGenerator`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from regard.errors import UserError
from regard.evaluation.perplexity import Perplexity, perplexity
from regard.model.store import Languages
from regard.model.transformer import CausalDecoder
from regard.pipelines.directory import PATIENCE, ModelDirectory, Pipeline, listed
from regard.search import generation
from regard.search.generation import Generation
from regard.search.settings import GenerationSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair

_OF_DRAWING = ("temperature", "top_k", "top_p", "min_p", "epsilon", "seed")


class TextGenerator(Pipeline):
    """Continues texts. Threads may share one: a call changes nothing on it.

    Options of each call are the fields of `GenerationSettings` (max_tokens, temperature, stop, seed, ...); those not
    given are the model directory's.
    """

    kinds = ("causal-decoder",)

    def __init__(
        self,
        model: CausalDecoder,
        tokenizer: Tokenizer,
        settings: GenerationSettings | None = None,
        workers: int = 1,
        languages: Languages | None = None,
    ) -> None:
        """From the parts; `load` reads them from a directory. The model is put into evaluation mode.

        With several `workers`, so many batches of a call are worked on at once, each by a thread.
        """
        self.model: CausalDecoder = model.eval()
        self.tokenizer = tokenizer
        self.tokenizers = TokenizerPair(tokenizer, tokenizer)
        self.settings: GenerationSettings = settings or GenerationSettings()
        self.workers = workers
        self.languages = languages or Languages()

    @classmethod
    def of(cls, directory: ModelDirectory) -> Self:
        settings = directory.settings(GenerationSettings)
        assert isinstance(directory.model, CausalDecoder)
        return cls(directory.model, directory.tokenizers.target, settings, languages=directory.config.languages)

    def generate(self, prompts: str | Sequence[str], **options: Any) -> list[str]:
        """What follows each prompt, in order; the prompt is not repeated. A single string counts as a list of one.

        With `n` above 1, each prompt gives so many texts, side by side in the list.

        Raises:
            UserError: an option is unknown, has an impossible value, or does not go with another.
        """
        return [each.text for result in self.results(prompts, **options) for each in result.continuations]

    def results(self, prompts: str | Sequence[str], **options: Any) -> list[Generation]:
        """As `generate`, with all that is known: token ids, log-probabilities, and why each text stopped."""
        return list(self.each(listed(prompts), patience=None, name="prompts", **options))

    def each(
        self, prompts: Iterable[str], *, patience: float | None = PATIENCE, name: str = "input", **options: Any
    ) -> Iterator[Generation]:
        """As `results` for prompts as they come, in order, without holding all of them.

        Args:
            prompts: read ahead by a thread when `patience` is given.
            patience: what has come is continued when nothing more has for so many seconds; None waits for some hundred
                prompts at a time.
            name: stands in warnings before the number of the line.
        """
        settings = self.options(options)
        return generation.generate(
            self.model, self.tokenizer, prompts, settings, patience=patience, workers=self.workers, name=name
        )

    def stream(self, prompt: str, **options: Any) -> Iterator[str]:
        """What follows one prompt, in pieces, each as soon as it is certain; together they are the text of `generate`.

        Raises:
            UserError: as `generate`; and for beam search, several texts, or a prompt longer than the model can read.
        """
        return generation.stream(self.model, self.tokenizer, prompt, self.options(options))

    def perplexity(self, text: str, *, context: int | None = None, stride: int | None = None) -> Perplexity:
        """How well the model predicts a text of any length; see `regard.evaluation.perplexity.perplexity`."""
        return perplexity(self.model, self.tokenizer, text, context=context, stride=stride)

    def options(self, options: dict[str, Any]) -> GenerationSettings:
        """The settings of a call with these options; `UserError` where they are impossible."""
        settings = GenerationSettings.parse({**self.settings.model_dump(), **options}, "options")
        idle = [name for name in _OF_DRAWING if options.get(name) is not None]
        if idle and (settings.beam > 1 or settings.contrastive > 0):
            search = "beam" if settings.beam > 1 else "contrastive"
            raise UserError(f"{idle[0]} is an option of drawing and has no meaning with {search} search; leave it out")
        return settings
