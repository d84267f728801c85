"""A model on disk: `config.json` and `model.safetensors`, written whole and read strictly.

No pickle: nothing in a model file can run. Computed tables are not in the file, and a matrix that several parts of the
model share stands in it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import UserError
from regard.model.inputs import Embedding
from regard.model.settings import AlignmentHead, HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder, Model
from regard.settings import Settings, read_json
from regard.text.lines import atomic_write

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
VERSION = 2
READABLE = (1, 2)
"""Version 1 had encoder-decoders only, with fewer settings; their defaults mean what it meant."""

Size = Annotated[int, Field(gt=0, le=2**24)]


class Vocabulary(Settings):
    """How many token ids an encoder reads (`source`) and a decoder writes (`target`), where the model has them."""

    source: Size | None = None
    target: Size | None = None


class Languages(Settings):
    """Which languages a model was trained on, such as `en` and `de`, where that is known."""

    source: str | None = None
    target: str | None = None


class ModelConfig(Settings):
    """The contents of `config.json`."""

    format: Literal["regard.model"] = "regard.model"
    version: int = VERSION
    family: Literal["encoder-decoder", "causal-decoder", "encoder"] = "encoder-decoder"
    languages: Languages = Languages()
    tokenizers: str | None = None
    """Fingerprint of the tokenizers that the model was trained with."""
    vocabulary: Vocabulary
    head: HeadSettings | None = None
    """What stands on an encoder."""
    alignment: AlignmentHead | None = None
    """Where the decoder has learned to say which words stand for each other, if it has."""
    model: ModelSettings

    @model_validator(mode="after")
    def _fits_the_family(self) -> ModelConfig:
        reads, writes = self.family != "causal-decoder" and self.model.input == "tokens", self.family != "encoder"
        if (self.vocabulary.source is not None) != reads or (self.vocabulary.target is not None) != writes:
            raise ValueError(f"vocabulary: does not fit a model of the family {self.family}")
        if self.head is not None and self.family != "encoder":
            raise ValueError(f"head: a model of the family {self.family} has none")
        if self.head is not None and self.head.kind == "masked-lm" and not reads:
            raise ValueError("head: a masked language model reads tokens")
        if self.alignment is not None and (
            self.family != "encoder-decoder"
            or self.alignment.layer >= self.model.decoder_layers
            or (self.alignment.head or 0) >= self.model.heads
        ):
            raise ValueError("alignment: the model has no such head")
        both = self.family == "encoder-decoder"
        if both and self.model.ties_inputs and self.vocabulary.source != self.vocabulary.target:
            raise ValueError(f'model.tie = "{self.model.tie}" needs one vocabulary for both sides')
        return self


def build(config: ModelConfig) -> Model:
    """A new model by its configuration."""
    return _BUILDERS[config.family](config)


_BUILDERS: dict[str, Callable[[ModelConfig], Model]] = {
    "encoder-decoder": lambda config: EncoderDecoder(
        config.model, config.vocabulary.source, _size(config.vocabulary.target)
    ),
    "causal-decoder": lambda config: CausalDecoder(config.model, _size(config.vocabulary.target)),
    "encoder": lambda config: BidirectionalEncoder(config.model, config.vocabulary.source, config.head),
}


def describe(model: Model, languages: Languages | None = None, tokenizers: str | None = None) -> ModelConfig:
    """The configuration of a model: `build` makes one like it."""
    vocabulary: dict[str, int] = {}
    reader = model.source_embedding if isinstance(model, EncoderDecoder) else model.embedding
    if isinstance(reader, Embedding) and not isinstance(model, CausalDecoder):
        vocabulary["source"] = len(reader.weight)
    if not isinstance(model, BidirectionalEncoder):
        vocabulary["target"] = len(model.output)
    return ModelConfig(
        family=model.family,
        languages=languages or Languages(),
        tokenizers=tokenizers,
        vocabulary=Vocabulary(**vocabulary),
        head=model.head_settings if isinstance(model, BidirectionalEncoder) else None,
        model=model.settings,
    )


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, each shared one once, whatever `torch.compile` or a distributed wrapper added around."""
    return {name: parameter.detach() for name, parameter in unwrap(model).named_parameters()}


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` (`_orig_mod`) and `DistributedDataParallel` (`module`)."""
    for wrapper in ("_orig_mod", "module"):
        inner = getattr(model, wrapper, None)
        if isinstance(inner, nn.Module):
            return unwrap(inner)
    return model


def assign(model: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Copy `tensors` into the weights of `model`, so that shared ones stay shared.

    Raises `UserError` listing every name or shape that does not fit; the model is then unchanged.
    """
    _refuse_misfits(model, tensors, origin)
    with torch.no_grad():
        for name, tensor in parameters(model).items():
            tensor.copy_(tensors[name])


def _refuse_misfits(model: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    own = parameters(model)
    missing = sorted(own.keys() - tensors.keys())
    extra = sorted(tensors.keys() - own.keys())
    shapes = [
        f"{name} is {_shape(tensors[name])}, not {_shape(own[name])}"
        for name in own.keys() & tensors.keys()
        if own[name].shape != tensors[name].shape
    ]
    shapes += [
        f"{name} holds no numbers with a fraction" for name, tensor in tensors.items() if not tensor.is_floating_point()
    ]
    problems = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"not expected: {', '.join(extra)}"] * bool(extra)
    if problems + shapes:
        raise UserError(f"{origin}: the weights do not fit the settings; {'; '.join(problems + sorted(shapes))}")


def write(
    directory: Path,
    model: nn.Module,
    languages: Languages | None = None,
    tokenizers: str | None = None,
    alignment: AlignmentHead | None = None,
) -> None:
    """Write `model` into `directory`; `config.json` comes last, so that a directory with one is complete.

    `tokenizers` is the fingerprint of those it was trained with, so that no others are taken for them; `alignment` is
    where it has learned to align.
    """
    model = unwrap(model)
    if not isinstance(model, Model):
        raise TypeError(f"not a model of this package: {type(model).__name__}")
    config = describe(model, languages, tokenizers).model_copy(update={"alignment": alignment})
    # Older releases refuse a key that they do not know.
    unknown = {"alignment"} if alignment is None else None
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_write(directory / WEIGHTS) as file:
        file.write(save({name: tensor.contiguous().cpu() for name, tensor in parameters(model).items()}))
    with atomic_write(directory / CONFIG) as file:
        file.write((config.model_dump_json(indent=2, exclude=unknown) + "\n").encode())


def find(directory: Path) -> Path:
    """The model directory that is meant: this one, or `model` inside that of a training run."""
    if not directory.is_dir():
        what = "is a file; a model is a directory" if directory.exists() else "does not exist"
        raise UserError(f"{directory}: {what}")
    inside = directory / "model"
    return inside if not (directory / CONFIG).exists() and (inside / CONFIG).exists() else directory


def read(directory: Path, device: torch.device | str = "cpu") -> Model:
    """Read the model in `directory`, in evaluation mode; `UserError` names the file and what is wrong with it."""
    config = read_config(directory)
    tensors = read_tensors(directory / WEIGHTS)
    # Without memory at first: dimensions that the weights do not have may be too large for any machine.
    _refuse_misfits(blueprint(config), tensors, str(directory / WEIGHTS))
    with _Undrawn():
        model = build(config)
    assign(model, tensors, str(directory / WEIGHTS))
    return model.to(device).eval()


def blueprint(config: ModelConfig) -> Model:
    """A model without memory for its weights, to be counted and compared."""
    with torch.device("meta"), _Undrawn():
        return build(config)


class _Undrawn(TorchFunctionMode):
    """Leaves out the random numbers that new weights begin with, where nobody will see them.

    To draw them takes longer than all else of reading a model, and moves on the random numbers of whoever reads it. Of
    a model without memory, it would load torch's compiler, which takes more than a second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func in _DRAW:
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


_DRAW = (Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


def read_config(directory: Path) -> ModelConfig:
    """Read and check `config.json`."""
    path = directory / CONFIG
    if not path.is_file():
        raise UserError(f"{directory}: is not a model directory (it has no {CONFIG})")
    values = read_json(path)
    if values.get("format") != "regard.model":
        hint = "; models of Hugging Face transformers are read by `regard convert`" if "model_type" in values else ""
        raise UserError(f"{path}: is not the configuration of a model of this package{hint}")
    if values.get("version") not in READABLE:
        raise UserError(
            f"{path}: has format version {values.get('version')!r}; this release reads versions up to {VERSION}: "
            "install the release that wrote it, or a newer one"
        )
    return ModelConfig.parse(values, str(path))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file. A file that would need unpickling is refused unread."""
    try:
        return load_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise UserError(
            f"{path}: is damaged or not a safetensors file ({error}); pickle checkpoints are not read"
        ) from None


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))


def _size(vocabulary: int | None) -> int:
    if vocabulary is None:
        raise ValueError("a model that writes tokens needs a vocabulary")
    return vocabulary
