"""The tokenizer of a Hugging Face model directory, read and written without `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from regard.text.tokenizer import TokenizerPair


def read_hub_tokenizer(
    directory: Path, source_language: str | None = None, target_language: str | None = None
) -> TokenizerPair:
    """The tokenizer of a model directory of `transformers`, with its control ids and what stands around a text.

    A model of one text (an encoder, a decoder) has a pair of one and the same: take its `source`.

    Args:
        source_language, target_language: for a model of many languages, as it names them (`en_XX`, `eng_Latn`, `en`,
            `fra` of `>>fra<<`).

    Raises:
        UserError: files are missing or damaged, or a language is unknown or needed.
    """
    raise NotImplementedError


def write_hub_tokenizer(
    directory: Path,
    tokenizers: TokenizerPair,
    family: Literal["encoder-decoder", "causal-decoder", "encoder"] = "encoder-decoder",
) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, which `transformers` reads as a `PreTrainedTokenizerFast`.

    Raises:
        UserError: the two sides have different tokenizers, for which that format has no place.
    """
    raise NotImplementedError
