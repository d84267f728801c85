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
    the ranking nearly. What ours has no word for (a length that does not depend on the source's) is left out.
    """
    values = read_json(directory / "config.json")
    path = directory / FILE
    if path.is_file():
        values |= read_json(path)
    config = Config(values, str(path if path.is_file() else directory / "config.json"))
    if family == "encoder-decoder":
        return SearchSettings.parse(_rules(config) | _beam(config) | _groups(config), config.origin)
    if family == "causal-decoder":
        return GenerationSettings.parse(_sampling(config), config.origin)
    return None


def _rules(config: Config) -> dict[str, Any]:
    """What no output may do; `min_length` counts what a decoder begins with, too."""
    begin = 1 + ("forced_bos_token_id" in config)
    least = config.integer("min_new_tokens", max(0, config.integer("min_length", 0) - begin))
    return {"no_repeat": config.integer("no_repeat_ngram_size", 0), "min_tokens": least}


def _beam(config: Config) -> dict[str, Any]:
    return {"beam": config.integer("num_beams", 1), "alpha": config.number("length_penalty", 1.0)}


def _groups(config: Config) -> dict[str, Any]:
    groups = config.integer("num_beam_groups", 1)
    return {"groups": groups, "diversity": config.number("diversity_penalty", 0.0)} if groups > 1 else {}


def _sampling(config: Config) -> dict[str, Any]:
    values = {
        "repetition_penalty": config.number("repetition_penalty", 1.0),
        "no_repeat": config.integer("no_repeat_ngram_size", 0),
        "min_tokens": config.integer("min_new_tokens", 0),
    }
    if not config.flag("do_sample", False):
        return values | {"temperature": 0.0} | _beam(config)
    return values | {
        "temperature": config.number("temperature", 1.0),
        "top_k": config.integer("top_k", 50),
        "top_p": config.number("top_p", 1.0),
        "min_p": config.number("min_p", 0.0),
        "epsilon": config.number("epsilon_cutoff", 0.0),
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
        if settings.get("groups", 1) > 1:
            values |= {"num_beam_groups": settings["groups"], "diversity_penalty": settings.get("diversity", 0.0)}
    elif settings.get("temperature", 0) > 0:
        drawn = {name: name for name in ("temperature", "top_k", "top_p", "min_p")} | {"epsilon": "epsilon_cutoff"}
        values |= {"do_sample": True} | {theirs: settings[ours] for ours, theirs in drawn.items() if ours in settings}
    values["repetition_penalty"] = settings.get("repetition_penalty")
    values["no_repeat_ngram_size"] = settings.get("no_repeat")
    values["min_new_tokens"] = settings.get("min_tokens") or None
    with atomic_write(directory / FILE) as file:
        content = {key: value for key, value in values.items() if value is not None}
        file.write((json.dumps(content, indent=2) + "\n").encode())
