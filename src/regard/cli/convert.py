"""`regard convert`: models to and from Hugging Face transformers, and to CTranslate2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from regard.errors import UserError


def convert(
    source: Path | None = None,
    target: Path | None = None,
    *,
    to: Literal["huggingface", "regard", "ctranslate2"] | None = None,
    architecture: str | None = None,
    quantization: str | None = None,
    dtype: Literal["float32", "keep"] = "float32",
    source_language: str | None = None,
    target_language: str | None = None,
    tokenizer: bool = True,
    show: Annotated[bool, Parameter(name="--list", negative="")] = False,
) -> None:
    """Turn a model of Hugging Face transformers into one of ours, or ours into one of theirs or of CTranslate2.

    Whose model is read, is seen in the directory. Only weights in safetensors are read: an old `pytorch_model.bin`
    may run code when it is opened. Where weights are unknown or missing, or settings not supported, they are listed and
    nothing is written.

    Examples:

        regard convert opus-mt-en-de models/en-de

        regard convert nllb-200-distilled-600M models/nllb --source-language eng_Latn --target-language deu_Latn

        regard convert runs/mine/model exported --architecture marian

        regard convert runs/mine/model fast --to ctranslate2 --quantization int8

        regard convert --list

    Parameters
    ----------
    source
        Directory of the model to read.
    target
        Directory to write. A model that stands there is replaced, anything else is not.
    to
        What to write. Only `ctranslate2` has to be said; the others are a check that it is what you mean.
    architecture
        Write this one of transformers; by default the first that computes what the model does.
    quantization
        How weights are stored for CTranslate2: int8, int8_float16, int8_bfloat16, int8_float32, int16, float16 or
        bfloat16; by default in float32.
    dtype
        Weights that are read become float32, or keep what they have.
    source_language
        Which language a model of many reads, as it names it.
    target_language
        Which language it writes.
    tokenizer
        Take the tokenizer over too.
    show
        Show the architectures and end.
    """
    if show:
        _list()
        return
    if source is None or target is None:
        raise UserError("regard convert FROM TO: needs the directory of a model and a directory to write")
    if quantization is not None and to != "ctranslate2":
        raise UserError("--quantization goes with --to ctranslate2 only")
    if to == "ctranslate2":
        if architecture is not None or not tokenizer:
            raise UserError("--architecture and --no-tokenizer go with models of transformers only")
        _to_ctranslate2(source, target, quantization)
        return
    import torch

    from regard.convert.directories import from_huggingface, to_huggingface
    from regard.convert.huggingface import is_foreign
    from regard.model.store import Languages

    foreign = is_foreign(source)
    if to == ("huggingface" if foreign else "regard"):
        raise UserError(f"{source}: is a model of {'transformers' if foreign else 'regard'} already")
    if foreign:
        languages = Languages(source=source_language, target=target_language)
        kept = None if dtype == "keep" else torch.float32
        written = from_huggingface(source, target, dtype=kept, tokenizer=tokenizer, languages=languages)
        print(f"{target}: {written.name} of transformers as a model directory")
    else:
        written = to_huggingface(source, target, architecture=architecture, tokenizer=tokenizer)
        print(f"{target}: {written.name} for transformers")


def _to_ctranslate2(source: Path, target: Path, quantization: str | None) -> None:
    from regard.convert.ctranslate2 import to_ctranslate2
    from regard.convert.huggingface import is_foreign

    if is_foreign(source):
        raise UserError(
            f"{source}: is a model of transformers; make it one of ours first: regard convert {source} OURS"
        )
    to_ctranslate2(source, target, quantization=quantization)
    print(f"{target}: a model for CTranslate2, in {quantization or 'float32'}")


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from regard.convert.architectures import ARCHITECTURES

    table = Table("architecture", "models", "family")
    for each in ARCHITECTURES.values():
        table.add_row(each.name, each.about, each.family)
    Console().print(table)
