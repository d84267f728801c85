"""What configurations of GPT-2, LLaMA and its relatives may say, and which of our decoders have one.

Shapes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from parity.conversion import foreign, reload
from parity.decoders import (
    END,
    VOCABULARY,
    batch,
    distance,
    edited,
    gpt2,
    our_logits,
    relative,
    their_logits,
)
from regard.convert import huggingface
from regard.errors import UserError
from regard.model.settings import ModelSettings, RotaryScaling, RotarySettings
from regard.model.transformer import CausalDecoder


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a model of an architecture."""
    made: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            foreign(gpt2() if name == "gpt2" else relative(name)).save_pretrained(made[name])
        return made[name]

    return directory


ROPE = {"rope_type": "default", "rope_theta": 10000.0}
REFUSED = [
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention = True"),
    ("gpt2", {"activation_function": "quick_gelu"}, "activation_function = 'quick_gelu'"),
    ("gpt2", {"n_ctx": 8}, "n_ctx = 8, n_positions = 40 (not equal)"),
    ("llama", {"hidden_act": "relu2"}, "hidden_act = 'relu2'"),
    ("llama", {"rope_parameters": ROPE | {"rope_type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic'"),
    ("llama", {"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, "type = 'longrope'"),
    ("llama", {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
    ("llama", {"rope_parameters": ROPE | {"mrope_section": [1, 1, 1]}}, "mrope_section = [1, 1, 1]"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ("llama", {"sliding_window": 3}, "sliding_window = 3"),
    ("mistral", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "linear_attention"),
    ("qwen2", {"layer_types": ["full_attention"] * 2}, "layer_types for 2 layers instead of 3"),
    ("qwen3", {"num_experts": 4}, "num_experts = 4"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ("gemma", {"hidden_activation": "relu"}, "hidden_activation = 'relu'"),
    ("gemma3_text", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping = 5.0"),
    ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_scaling = {'rope_type': 'linear'"),
    ("gemma2", {"quantization_config": {"bits": 4}}, "quantization_config = {'bits': 4}"),
]


@pytest.mark.parametrize(("name", "values", "sentence"), REFUSED, ids=[f"{n} {next(iter(v))}" for n, v, _ in REFUSED])
def test_what_would_change_results_is_refused(
    stored: Callable[[str], Path], tmp_path: Path, name: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refusal:
        huggingface.read(edited(stored(name), tmp_path, **values))

    assert sentence in str(refusal.value)
    assert str(tmp_path / "config.json") in str(refusal.value)


def test_all_that_is_not_supported_is_listed_at_once(stored: Callable[[str], Path], tmp_path: Path) -> None:
    values = {"hidden_act": "mish", "use_bidirectional_attention": True, "altogether_new": 5}

    with pytest.raises(
        UserError, match=r"hidden_act = 'mish' .*; .*bidirectional_attention = True; altogether_new = 5"
    ):
        huggingface.read(edited(stored("llama"), tmp_path, **values))


def test_older_files_say_the_same_in_other_words(stored: Callable[[str], Path], tmp_path: Path) -> None:
    """Before release 5: rope_theta and rope_scaling, whose kind was its type."""
    tokens_BT, real_BT = batch("left")
    older = {"rope_parameters": None, "rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 4.0}}
    newer = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50.0}}
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    one, _, _ = huggingface.read(edited(stored("llama"), first, **older))
    other, _, _ = huggingface.read(edited(stored("llama"), second, **newer))

    assert torch.equal(our_logits(one, tokens_BT, real_BT), our_logits(other, tokens_BT, real_BT))


def test_older_files_of_gemma_3_have_a_base_for_each_kind_of_layer(
    stored: Callable[[str], Path], tmp_path: Path
) -> None:
    older = {
        "rope_parameters": None,
        "rope_theta": 50.0,
        "rope_local_base_freq": 20.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "layer_types": None,
        "sliding_window_pattern": 3,
    }

    _, _, plan = huggingface.read(edited(stored("gemma3_text"), tmp_path, **older))

    assert plan.settings.spans == ("window", "window", "full")
    assert plan.settings.rotary == RotarySettings(base=50.0, scaling=RotaryScaling(kind="linear", factor=8.0))
    assert plan.settings.window_rotary == RotarySettings(base=20.0)


PUBLIC = [
    (
        "gpt2",
        {"n_ctx": 40, "task_specific_params": {"text-generation": {"do_sample": True}}, "summary_activation": None},
    ),
    ("llama", {"pretraining_tp": 2, "rope_scaling": None, "eos_token_id": [END, 7, 9], "torch_dtype": "bfloat16"}),
    ("qwen2", {"use_mrope": False, "sliding_window": 5, "max_window_layers": 0, "layer_types": None}),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh", "rope_scaling": None}),
    ("gemma2", {"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"}),
]


@pytest.mark.parametrize(("name", "words"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_words_of_public_files_change_nothing(
    stored: Callable[[str], Path], tmp_path: Path, name: str, words: dict[str, Any]
) -> None:
    """Gemma's first files write "gelu" and mean its approximation; a window counts only where it is switched on."""
    _, _, plan = huggingface.read(edited(stored(name), tmp_path, **words))

    assert plan == huggingface.read(stored(name))[2]


def test_computed_tables_in_old_files_are_no_weights(stored: Callable[[str], Path], tmp_path: Path) -> None:
    for name, tables in (
        ("gpt2", ("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias")),
        ("llama", ("model.layers.2.self_attn.rotary_emb.inv_freq",)),
    ):
        read = edited(stored(name), tmp_path)
        weights = load_file(read / "model.safetensors")
        save_file(weights | {table: torch.ones(3) for table in tables}, read / "model.safetensors")
        huggingface.read(read)


# Models that begin with us

OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"positions": "learned", "norm_placement": "pre", "feed_forward": "gelu", "embedding_scale": 1.0}),
    "llama": ("llama", {"attention_bias": "none", "feed_forward_bias": False}),
    "some biases": ("llama", {"attention_bias": "in", "feed_forward_bias": True}),
    "window": ("mistral", {"attention_bias": "none", "feed_forward_bias": False, "spans": ("window",), "window": 4}),
    "windows in turn": (
        "qwen2",
        {"attention_bias": "in", "feed_forward_bias": False, "spans": ("full", "window"), "window": 4},
    ),
    "qk norm": ("qwen3", {"attention_bias": "none", "feed_forward_bias": False, "qk_norm": True, "tie": "none"}),
    "scaled": ("gemma", {"attention_bias": "none", "feed_forward_bias": False, "embedding_scale": None}),
    "softcaps": (
        "gemma2",
        {
            "attention_bias": "none",
            "feed_forward_bias": False,
            "embedding_scale": None,
            "norm_placement": "both",
            "output_softcap": 2.0,
        },
    ),
    "rotary by span": (
        "gemma3_text",
        {
            "attention_bias": "all",
            "feed_forward_bias": False,
            "embedding_scale": None,
            "norm_placement": "both",
            "feed_forward": "geglu-tanh",
            "qk_norm": True,
            "spans": ("full", "window"),
            "window": 3,
            "rotary": {"base": 100.0, "scaling": {"kind": "yarn", "factor": 2.0, "original_length": 8}},
            "window_rotary": {"base": 30.0},
        },
    ),
}


def own(values: dict[str, Any]) -> CausalDecoder:
    modern = {
        "positions": "rotary",
        "norm": "rms",
        "norm_placement": "pre",
        "feed_forward": "swiglu",
        "embedding_scale": 1.0,
    }
    base = {} if values.get("positions") == "learned" else modern
    size = {"d_model": 24, "d_ff": 20, "heads": 4, "kv_heads": 2 if base else None, "decoder_layers": 3}
    torch.manual_seed(5)
    model = CausalDecoder(ModelSettings.model_validate({**size, **base, "max_length": 40, **values}), VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.mark.parametrize(("name", "values"), OURS.values(), ids=OURS)
def test_our_models_become_theirs(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    model = own(values)
    tokens_BT, real_BT = batch("left")

    architecture = huggingface.write(tmp_path / "model", model)

    assert architecture.name == name
    theirs = reload(foreign_class(name), tmp_path / "model")
    ours = our_logits(model, tokens_BT, real_BT)
    assert distance(ours, their_logits(theirs, tokens_BT, real_BT), real_BT) < 1e-5


def foreign_class(name: str) -> str:
    return "GPT2LMHeadModel" if name == "gpt2" else relative(name).kind


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"positions": "alibi"}, "positions = alibi"),
        ({"rotary": {"layout": "interleaved"}}, "rotary = "),
        ({"rotary": {"scaling": {"kind": "ntk", "factor": 2.0}}}, "rotary.scaling.kind = ntk"),
        ({"d_value": 5}, "d_value = 5"),
        ({"spans": ("blocks",), "window": 2}, "spans = ('blocks',), window = 2"),
        ({"d_key": 7, "d_value": 7, "heads": 5, "kv_heads": 5}, "d_model = 24"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_what_no_architecture_computes_is_not_written(values: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        huggingface.write(tmp_path / "model", own(values), name="llama")

    assert sentence in str(refusal.value)
    assert not (tmp_path / "model").exists()
