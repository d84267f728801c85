"""How to search: `generation_config.json` of transformers and our `generation.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.convert.config import Config
from regard.convert.mapping import Ids
from regard.search.settings import GenerationSettings, SearchSettings
from regard.settings import Settings, read_json
from regard.text.lines import atomic_write

FILE = "generation_config.json"


def read_generation(directory: Path, family: str) -> Settings | None:
    """Our settings of search from theirs, which older releases keep in `config.json`; None for an encoder.

    Their length penalty divides by a power of the length, ours by that of the paper, so the exponent is the same and
    the ranking nearly. What ours has no word for (no_repeat_ngram_size of an encoder-decoder and the like) is left out.
    """
    values = read_json(directory / "config.json")
    path = directory / FILE
    if path.is_file():
        values |= read_json(path)
    config = Config(values, str(path if path.is_file() else directory / "config.json"))
    if family == "encoder-decoder":
        search = {"beam": config.integer("num_beams", 1), "alpha": config.number("length_penalty", 1.0)}
        return SearchSettings.parse(search, config.origin)
    if family == "causal-decoder":
        return GenerationSettings.parse(_sampling(config), config.origin)
    return None


def _sampling(config: Config) -> dict[str, Any]:
    values = {
        "repetition_penalty": config.number("repetition_penalty", 1.0),
        "no_repeat": config.integer("no_repeat_ngram_size", 0),
    }
    if not config.flag("do_sample", False):
        beam, alpha = config.integer("num_beams", 1), config.number("length_penalty", 1.0)
        return values | {"temperature": 0.0, "beam": beam, "alpha": alpha}
    return values | {
        "temperature": config.number("temperature", 1.0),
        "top_k": config.integer("top_k", 50),
        "top_p": config.number("top_p", 1.0),
        "min_p": config.number("min_p", 0.0),
    }


def write_generation(directory: Path, settings: Mapping[str, Any], ids: Ids) -> None:
    """Write `generation_config.json` from the contents of `generation.json`, which may be empty."""
    values: dict[str, Any] = {
        "pad_token_id": ids.pad,
        "bos_token_id": ids.bos,
        "eos_token_id": ids.eos,
        "decoder_start_token_id": ids.start,
        "forced_bos_token_id": ids.forced,
        "num_beams": settings.get("beam", 1),
    }
    if values["num_beams"] > 1:  # which does not draw here, whatever the temperature
        values["length_penalty"] = settings.get("alpha", 1.0)
    elif settings.get("temperature", 0) > 0:
        drawn = ("temperature", "top_k", "top_p", "min_p")
        values |= {"do_sample": True} | {key: settings[key] for key in drawn if key in settings}
    values["repetition_penalty"] = settings.get("repetition_penalty")
    values["no_repeat_ngram_size"] = settings.get("no_repeat")
    with atomic_write(directory / FILE) as file:
        content = {key: value for key, value in values.items() if value is not None}
        file.write((json.dumps(content, indent=2) + "\n").encode())
