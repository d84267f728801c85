"""The settings of a whole run: what a recipe may say. What each task makes of them stands in its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from regard.data.batches import BatchSettings
from regard.data.corpus import CleaningSettings
from regard.data.masking import MaskingSettings
from regard.data.packing import PackingSettings
from regard.data.resampled import SubwordDropoutSettings
from regard.data.tokens import Documents
from regard.evaluation.metrics import MetricSettings
from regard.model.adapters import AdapterSettings
from regard.model.settings import ModelSettings
from regard.search.settings import GenerationSettings, SearchSettings
from regard.settings import Settings
from regard.text.vocabulary import CONTROL, MASK, TokenizerSettings
from regard.training.keeping import CheckpointSettings
from regard.training.trainer import TrainingSettings
from regard.training.validation import ValidationSettings

TaskName = Literal[
    "translation",
    "language-model",
    "masked-language-model",
    "text-classification",
    "token-classification",
    "image-classification",
]

FilePath = Annotated[Path, AfterValidator(Path.absolute)]
"""Made absolute, so that a run can go on from any directory."""


class Files(Settings):
    """The text of one part of a corpus; plain or gzip.

    For translation: two parallel files, or one of two tab-separated columns. For language models: one text. For
    classification: texts and their labels, as two parallel files or as one.
    """

    source: FilePath
    """Text to read, one sentence a line."""
    target: FilePath | None = None
    """Translations or labels, line by line; unset: `source` holds both."""


class TrainFiles(Files):
    """The text to train on."""

    alignments: FilePath | None = None
    """For `training.alignment`: which words of each line stand for each other, as in `0-0 1-2` (the format of Pharaoh;
    words are what stands between white space). Unset: that is learned from the text."""


class Mixed(Files):
    """Further text to train on, and how often it is seen."""

    weight: float = Field(1.0, gt=0, le=1000, allow_inf_nan=False)
    """How often an epoch sees each pair: twice with 2; with 0.5, half of the pairs one time, the others next time."""
    tag: str | None = Field(None, pattern=r"^[a-z][a-z0-9-]*$")
    """Name of a token that says what this text is, such as `bt` of back-translations: it stands before each source, no
    text can spell it, and translating never needs it (Caswell et al. 2019)."""

    @model_validator(mode="after")
    def _free_name(self) -> Self:
        if self.tag is not None and f"<{self.tag}>" in (*CONTROL, MASK):
            raise ValueError(f"tag: {self.tag} is the name of a control token; choose another")
        return self

    @property
    def label(self) -> str:
        """Its files, by their names."""
        return " and ".join(path.name for path in (self.source, self.target) if path is not None)

    @property
    def marked(self) -> str:
        """What to say of its tag, after a list of other things."""
        return "" if self.tag is None else f", tagged <{self.tag}>"


class DataSettings(Settings):
    """Which text."""

    corpus: str | None = None
    """A named corpus (`regard data get --help` lists them), in place of `train`, `dev` and `test`."""
    source_language: str | None = None
    """Language of the source, as in `en`; for the model card."""
    target_language: str | None = None
    """Language of the target, as in `de` or `zh-Hans`: chooses the part of a named corpus, and how BLEU cuts words."""
    train: TrainFiles | None = None
    dev: Files | None = None
    """Unset: a part of `train` is held out for validation."""
    test: Files | None = None
    """The model is measured on it at the end, when given."""
    mix: tuple[Mixed, ...] = ()
    """A list of further texts to train on beside `train`, of which each pair is seen once in an epoch."""
    documents: Documents = "lines"
    """What a document of a language model's text is: each line, the lines between blank ones, or the whole file."""
    cleaning: CleaningSettings = CleaningSettings()
    max_length: int = Field(256, gt=0)
    """What has more tokens than this (on a side) is not trained on (and reported)."""
    subword_dropout: SubwordDropoutSettings = SubwordDropoutSettings()
    """Text to train on is cut anew in each epoch; all other text as always."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.corpus is None) == (self.train is None):
            raise ValueError("give either a corpus (by name) or train (files)")
        if self.corpus is not None and (self.dev or self.test):
            raise ValueError(f"the corpus {self.corpus} has its own dev and test files")
        return self


class RunSettings(Settings):
    """Everything about a run. The resolved settings of each run are written to its `settings.yaml`."""

    task: TaskName = "translation"
    """What the model is to learn."""
    preset: str | None = None
    """A named model to start from (`regard inspect --help` lists them); `model` and `training` change it."""
    initial: FilePath | None = None
    """A model directory to go on from: its tokenizer, settings and weights are taken."""
    initial_optimizer: Literal["reset", "keep"] = "reset"
    """Whether the optimizer begins anew, or with what that of `initial`, a run with checkpoints, remembered last."""
    extend_vocabulary: int | None = Field(None, gt=0, le=2**20)
    """So many further pieces are learned from `data.train` for the vocabulary of `initial`; its ids stay."""
    adapters: AdapterSettings | None = None
    """Low-rank adapters (LoRA) learn, in place of the weights of `initial`, which stay as they are."""
    data: DataSettings
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings = ModelSettings()
    batches: BatchSettings = BatchSettings()
    packing: PackingSettings = PackingSettings()
    masking: MaskingSettings = MaskingSettings()
    images: int = Field(32, gt=0, le=2**20)
    """Images of a batch."""
    training: TrainingSettings = TrainingSettings()
    validation: ValidationSettings = ValidationSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    search: SearchSettings = SearchSettings()
    generation: GenerationSettings = GenerationSettings()
    metrics: MetricSettings = MetricSettings()

    @model_validator(mode="after")
    def _adapters_adapt(self) -> Self:
        if self.adapters is not None and self.initial is None:
            raise ValueError("adapters change a model that has learned already: name it by initial")
        return self

    @model_validator(mode="after")
    def _initial_there(self) -> Self:
        if self.initial is None and self.initial_optimizer == "keep":
            raise ValueError("initial_optimizer: keep goes on from a run: name it by initial")
        if self.initial is None and self.extend_vocabulary is not None:
            raise ValueError("extend_vocabulary makes the vocabulary of another model longer: name that by initial")
        if self.extend_vocabulary is not None and self.adapters is not None:
            raise ValueError("extend_vocabulary adds weights that must learn: leave out adapters")
        return self

    @model_validator(mode="after")
    def _something_to_disagree_about(self) -> Self:
        model = self.model
        if self.training.r_drop and not (model.dropout or model.attention_dropout or model.activation_dropout):
            raise ValueError(
                "training.r_drop compares what dropout leaves of the model: it needs model.dropout above 0"
            )
        return self
