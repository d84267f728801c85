"""Rotary positions in configurations of `transformers`: `rope_parameters`, formerly `rope_theta` and `rope_scaling`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.convert.config import Config
from regard.convert.mapping import InexpressibleError
from regard.model.settings import RotaryScaling, RotarySettings

_KINDS: Mapping[str, str | None] = {"default": None, "linear": "linear", "llama3": "llama3", "yarn": "yarn"}


def read_rotary(config: Config, base: float = 10_000.0) -> RotarySettings:
    """The rotary positions of a model that has one kind of them.

    `dynamic` and `longrope`, whose angles change with the length of the text, are not supported.
    """
    config.expect("partial_rotary_factor", None, 1, 1.0)
    return read_section(config, _section(config), config.number("rope_theta", base))


def _section(config: Config) -> Config | None:
    """The newer section or the older one, which wins where both stand, as in `transformers`."""
    older, newer = config.section("rope_scaling"), config.section("rope_parameters")
    return older or newer


def read_rotary_by_layer(config: Config, base: float, window_base: float) -> tuple[RotarySettings, RotarySettings]:
    """The rotary positions of layers that see all, and of those that reach a window."""
    both = config.section("rope_parameters")
    full = config.section("rope_scaling") if both is None else both.section("full_attention")
    window = None if both is None else both.section("sliding_attention")
    return (
        read_section(config, full, config.number("rope_theta", base)),
        read_section(config, window, config.number("rope_local_base_freq", window_base)),
    )


def read_section(config: Config, section: Config | None, base: float) -> RotarySettings:
    """The rotary positions of one `section`, if there is one; `base` where it does not say it itself."""
    if section is None:
        return RotarySettings.parse({"base": base}, config.origin)
    section.expect("partial_rotary_factor", None, 1, 1.0)
    kind = section.choice("rope_type" if "rope_type" in section else "type", _KINDS, "default")
    scaling = None if kind is None else RotaryScaling.parse(_scaling(config, section, kind), section.origin)
    values = {"base": section.number("rope_theta", base), "scaling": scaling}
    return RotarySettings.parse(values, section.origin)


def _scaling(config: Config, section: Config, kind: str) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": kind, "factor": section.number("factor")}
    if kind != "linear":
        length = section.optional("original_max_position_embeddings")
        values["original_length"] = length or config.integer("max_position_embeddings")
    if kind == "llama3":
        values["low_frequency_factor"] = section.number("low_freq_factor")
        values["high_frequency_factor"] = section.number("high_freq_factor")
    if kind == "yarn":
        values["beta_fast"] = section.optional_number("beta_fast") or 32.0
        values["beta_slow"] = section.optional_number("beta_slow") or 1.0
        values["truncate"] = section.flag("truncate", True)
        values["attention_factor"] = _attention_factor(section, values["factor"])
    return values


def _attention_factor(section: Config, factor: float) -> float | None:
    given = section.optional_number("attention_factor")
    above, below = section.optional_number("mscale"), section.optional_number("mscale_all_dim")
    if given is not None or not (above and below):
        return given
    return (0.1 * above * math.log(factor) + 1) / (0.1 * below * math.log(factor) + 1)


def write_rotary(rotary: RotarySettings) -> dict[str, Any]:
    """The keys of a configuration, in the older form, which all releases read."""
    values: dict[str, Any] = {"rope_theta": rotary.base}
    if rotary.scaling is not None:
        values["rope_scaling"] = write_scaling(rotary.scaling)
    return values


def write_scaling(scaling: RotaryScaling) -> dict[str, Any]:
    """The section of a kind of scaling."""
    if scaling.kind not in _KINDS:
        raise InexpressibleError(f"rotary.scaling.kind = {scaling.kind}")
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind != "linear":
        values["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "llama3":
        values["low_freq_factor"] = scaling.low_frequency_factor
        values["high_freq_factor"] = scaling.high_frequency_factor
    if scaling.kind == "yarn":
        values |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow, "truncate": scaling.truncate}
        if scaling.attention_factor is not None:
            values["attention_factor"] = scaling.attention_factor
    return values
