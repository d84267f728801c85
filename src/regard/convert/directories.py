"""Whole model directories, ours and those of `transformers`: weights, tokenizer and the settings of search."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.convert import huggingface
from regard.convert.generation import read_generation, write_generation
from regard.convert.mapping import Architecture, Ids
from regard.convert.output import refuse_same
from regard.convert.whisper import refuse_other_frames, write_frames
from regard.errors import UserError
from regard.model import store
from regard.pipelines.directory import CARD, GENERATION
from regard.settings import read_json
from regard.text.directories import whole_directory
from regard.text.foreign import read_hub_tokenizer, write_hub_tokenizer
from regard.text.lines import atomic_write
from regard.text.tokenizer import TokenizerPair
from regard.version import __version__

TOKENIZERS = ("tokenizer.json", "tokenizer.source.json", "tokenizer.target.json")


def from_huggingface(
    source: Path,
    target: Path,
    *,
    dtype: torch.dtype | None = torch.float32,
    tokenizer: bool = True,
    languages: store.Languages | None = None,
) -> Architecture:
    """Write the model of `transformers` in `source` as a model directory of ours.

    Args:
        dtype: of the weights; None keeps that of the file.
        tokenizer: whether to take over the tokenizer; without it the model can be read and trained, not given text.
        languages: which of its languages a model of many translates.

    Raises:
        UserError: what is not supported, missing or damaged; or `target` holds something that is not a model.
        JobError: the disk is full.
    """
    refuse_same(source, target)
    languages = languages or store.Languages()
    model, architecture, plan = huggingface.read(source, dtype)
    if plan.settings.input == "frames":
        refuse_other_frames(source, plan.settings)
    tokenizers = None
    if tokenizer and (plan.source or plan.target):
        tokenizers = read_hub_tokenizer(source, languages.source, languages.target)
        _refuse_foreign(source, tokenizers, plan.source, plan.target)
    search = read_generation(source, plan.family)
    with whole_directory(target) as partial:
        if tokenizers is not None:
            tokenizers.save(partial)
        texts = {CARD: _card(architecture, source)}
        if search is not None:
            texts[GENERATION] = search.model_dump_json(indent=2) + "\n"
        for name, text in texts.items():
            with atomic_write(partial / name) as file:
                file.write(text.encode("utf-8"))
        store.write(partial, model, languages, None if tokenizers is None else tokenizers.fingerprint)
    return architecture


def to_huggingface(
    source: Path, target: Path, *, architecture: str | None = None, tokenizer: bool = True
) -> Architecture:
    """Write the model directory `source` of ours as one that `transformers` loads.

    Args:
        architecture: by name; without it, the first that computes what the model does.
        tokenizer: whether to write the tokenizer too.

    Raises:
        UserError: no architecture computes the same; or `target` holds something that is not a model.
        JobError: the disk is full.
    """
    source = store.find(source)
    refuse_same(source, target)
    model = store.read(source)
    tokenizers = TokenizerPair.load(source) if any((source / name).exists() for name in TOKENIZERS) else None
    ids = Ids() if tokenizers is None else _ids(tokenizers)
    search = read_json(source / GENERATION, missing={})

    def more(partial: Path) -> None:
        if tokenizers is not None and tokenizer:
            write_hub_tokenizer(partial, tokenizers, store.describe(model).family)
        if model.settings.input == "frames":
            write_frames(partial, model.settings)
        if model.family != "encoder":
            write_generation(partial, search, ids)

    return huggingface.write(target, model, ids, architecture, more)


def _ids(tokenizers: TokenizerPair) -> Ids:
    target, (start, *then) = tokenizers.target, tokenizers.target_begin
    # Of more than one, Whisper's language and task, transformers asks whoever calls.
    forced = then[0] if len(then) == 1 else None
    return Ids(pad=target.pad, bos=target.bos, eos=target.eos, start=start, forced=forced)


def _refuse_foreign(origin: Path, tokenizers: TokenizerPair, source: int | None, target: int | None) -> None:
    for size, vocabulary in ((tokenizers.source.size, source), (tokenizers.target.size, target)):
        if vocabulary not in (None, size):
            raise UserError(
                f"{origin}: the tokenizer has {size} ids and the model {vocabulary}; they do not belong together: "
                "fetch the directory again, or convert without the tokenizer"
            )


def _card(architecture: Architecture, source: Path) -> str:
    name = source.resolve().name
    return "\n".join(
        [
            f"# {name}",
            "",
            f"Converted from a model of Hugging Face transformers ({architecture.name}) by regard {__version__}. Its "
            "licence and its description are those of the original.",
            "",
            "```python",
            "import regard",
            "",
            'model = regard.load("path/of/this/directory")',
            "```",
            "",
        ]
    )
