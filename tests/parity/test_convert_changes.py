"""Every setting, changed: an architecture of `transformers` has a word for it and gives our logits, or refuses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import conversion, decoders, test_convert_encoders
from parity.conversion import Case
from parity.test_convert_decoders import CASES as DECODERS
from parity.test_convert_encoder_decoders import CASES as PAIRS
from parity.test_convert_encoders import CASES as ENCODERS
from parity.test_convert_encoders import IMAGES
from regard.convert import huggingface
from regard.convert.mapping import Blueprint, essence
from regard.errors import UserError
from regard.model.settings import ModelSettings

CHANGES: dict[str, tuple[Any, ...]] = {
    "d_ff": (20,),
    "heads": (2,),
    "kv_heads": (1, 2),
    "d_key": (4, 10),
    "d_value": (4, 10),
    "encoder_layers": (1,),
    "decoder_layers": (1, 4),
    "positions": ("sinusoidal", "learned", "rotary", "alibi", "t5", "none"),
    "sinusoids": ({}, {"layout": "halves"}, {"layout": "halves", "spacing": "inclusive", "first": 5}),
    "rotary": (
        {"base": 77.0},
        {"fraction": 0.5},
        {"layout": "interleaved"},
        {"scaling": {"kind": "linear", "factor": 3.0}},
        {"scaling": {"kind": "ntk", "factor": 3.0}},
        {"scaling": {"kind": "yarn", "factor": 3.0, "original_length": 8, "beta_fast": 3.0}},
    ),
    "buckets": ({"count": 12}, {"count": 8, "max_distance": 30}),
    "max_length": (17,),
    "source_max_length": (15,),
    "segments": (0, 1, 3),
    "embedding_scale": (None, 1.0, 1.7),
    "embedding_norm": (True, False),
    "norm": ("layer", "rms"),
    "norm_placement": ("post", "pre", "both"),
    "norm_epsilon": (1e-2,),
    "final_norm": (True, False),
    "qk_norm": (True, False),
    "feed_forward": ("relu", "gelu", "gelu-tanh", "silu", "glu", "reglu", "geglu", "geglu-tanh", "swiglu"),
    "feed_forward_bias": (True, False),
    "attention_bias": ("all", "in", "none"),
    "attention_scale": (0.2, 1.0),
    "attention_softcap": (0.5, None),
    "output_softcap": (0.5, None),
    "output_bias": (True, False),
    "spans": (("window",), ("full", "window"), ("window", "full", "full"), ("blocks",)),
    "global_tokens": (1,),
    "tie": ("all", "inputs", "decoder", "none"),
}


def first_of_each() -> Iterator[Case]:
    seen = set()
    for case in [*PAIRS, *DECODERS.values(), *ENCODERS.values(), *IMAGES.values()]:
        name = case.name.split(",")[0]
        if name not in seen:
            seen.add(name)
            yield case


def changed(settings: ModelSettings) -> Iterator[tuple[str, ModelSettings]]:
    base = {"window": 2, "block": 2} | settings.model_dump(exclude_none=True)
    for key, values in CHANGES.items():
        for value in values:
            try:
                yield f"{key} = {value}", ModelSettings.parse(base | {key: value}, "changed")
            except UserError:
                continue  # no model of ours


def ours_and_theirs(model: Any, back: Any, family: str) -> tuple[Tensor, Tensor]:
    if family == "encoder-decoder":
        batch = conversion.pairs(back, target=5)
        return conversion.own_logits(model, batch), conversion.foreign_logits(back, batch)
    if family == "causal-decoder":
        tokens, real = decoders.batch("left")
        return decoders.our_logits(model, tokens, real)[real], decoders.their_logits(back, tokens, real)[real]
    if model.settings.input == "patches":
        images = test_convert_encoders.images(back.config)
        with torch.inference_mode():
            return model.logits(model.encode(images)), back(pixel_values=images).logits
    tokens, real = test_convert_encoders.batch("right")
    ours = test_convert_encoders.our_logits(model, tokens, real)
    theirs = test_convert_encoders.their_logits(back, tokens, real)
    return (ours[real], theirs[real]) if ours.dim() == 3 else (ours, theirs)


@pytest.mark.parametrize("case", list(first_of_each()), ids=lambda case: case.name)
def test_a_changed_setting_is_expressed_or_refused(case: Case, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    conversion.foreign(case).save_pretrained(tmp_path / "foreign")
    _, architecture, plan = huggingface.read(tmp_path / "foreign")
    written = tmp_path / "written"
    compared: list[tuple[dict[str, Any], Any]] = []
    refused = 0
    for name, settings in changed(plan.settings):
        changed_plan = replace(plan, settings=settings, variant="")
        try:
            architecture.express(changed_plan)
        except UserError:
            refused += 1
            continue
        model, sense = random_model(changed_plan), essence(changed_plan)
        # Where the setting means nothing beside the others, the model is one that was written before.
        back = next((theirs for before, theirs in compared if before == sense), None)
        if back is None:
            huggingface.write(written, model, plan.ids, architecture.name)
            kind = json.loads((written / "config.json").read_text())["architectures"][0]
            back = conversion.reload(kind, written)
            compared.append((sense, back))
        ours, theirs = ours_and_theirs(model, back, plan.family)
        assert float((ours - theirs).abs().max()) < 1e-4, name
    assert len(compared) > 3
    assert refused > 20


def random_model(plan: Blueprint) -> Any:
    torch.manual_seed(5)
    model = plan.build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
