"""GPT-2, LLaMA and its relatives: the models of `transformers` and ours made of them give the same, and back.

Shapes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from parity.conversion import Conversion, foreign, tensors
from parity.decoders import (
    BEGIN,
    END,
    PAD,
    VOCABULARY,
    batch,
    distance,
    edited,
    gpt2,
    our_logits,
    relative,
    rope,
    their_logits,
)
from regard.convert import huggingface
from regard.errors import UserError
from regard.model.places import run
from regard.model.transformer import CausalDecoder
from regard.search.beam import beam_search
from regard.search.processors import Ban
from regard.search.settings import SearchSettings

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
CASES = {
    "gpt2": gpt2(),
    "gpt2, exact gelu, untied": gpt2(activation_function="gelu", tie_word_embeddings=False, n_inner=20),
    "gpt2, unscaled scores": gpt2(activation_function="relu", scale_attn_weights=False, reorder_and_upcast_attn=True),
    "llama, as many key heads": relative("llama", num_key_value_heads=4),
    "llama, one key head, tied": relative("llama", num_key_value_heads=1, tie_word_embeddings=True),
    "llama, wide heads, biases": relative("llama", head_dim=10, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "llama, narrow heads, other base": relative("llama", head_dim=4, rope_parameters={"rope_theta": 500.0}),
    "llama, linear": relative("llama", **rope("linear")),
    "llama, llama3": relative("llama", head_dim=12, **rope("llama3", **LLAMA3)),
    "llama, yarn": relative("llama", head_dim=12, **rope("yarn", original_max_position_embeddings=8)),
    "llama, yarn with all": relative(
        "llama",
        head_dim=12,
        **rope(
            "yarn",
            original_max_position_embeddings=8,
            attention_factor=1.3,
            beta_fast=4.0,
            beta_slow=0.5,
            truncate=False,
        ),
    ),
    "llama, yarn with mscale": relative(
        "llama", head_dim=12, **rope("yarn", original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=0.4)
    ),
    "mistral, window": relative("mistral", sliding_window=3),
    "mistral, no window": relative("mistral", sliding_window=None, head_dim=10),
    "qwen2": relative("qwen2", tie_word_embeddings=True),
    "qwen2, window in the last layers": relative(
        "qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    "qwen3": relative("qwen3", head_dim=10, attention_bias=True),
    "qwen3, window in some layers": relative(
        "qwen3",
        use_sliding_window=True,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
    ),
    "gemma": relative("gemma", num_key_value_heads=1, head_dim=10),
    "gemma, biases": relative("gemma", attention_bias=True, hidden_act="gelu"),
    "gemma2": relative(
        "gemma2",
        sliding_window=3,
        query_pre_attn_scalar=5,
        attn_logit_softcapping=0.5,
        final_logit_softcapping=0.8,
    ),
    "gemma3": relative(
        "gemma3_text",
        sliding_window=3,
        sliding_window_pattern=2,
        query_pre_attn_scalar=5,
        final_logit_softcapping=0.8,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 200.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    ),
    "gemma2, no caps": relative(
        "gemma2", attn_logit_softcapping=None, final_logit_softcapping=None, tie_word_embeddings=False
    ),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    conversion = Conversion(request.param, tmp_path_factory.mktemp("pair"))
    assert conversion.architecture.name == request.param.name
    conversion.foreign.generation_config = transformers.GenerationConfig()
    return conversion


@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_logits_are_the_same(pair: Conversion, side: str) -> None:
    tokens_BT, real_BT = batch(side, (11, 11, 11) if side == "none" else (11, 4, 8))

    expected = their_logits(pair.foreign, tokens_BT, real_BT)

    assert distance(our_logits(pair.own, tokens_BT, real_BT), expected, real_BT) < 1e-5


@pytest.mark.parametrize("pieces", [[1] * 11, [4, 1, 6], [10, 1]], ids=["steps", "chunks", "prompt"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_are_the_same_with_a_cache(pair: Conversion, side: str, pieces: list[int]) -> None:
    tokens_BT, real_BT = batch(side)

    expected = their_logits(pair.foreign, tokens_BT, real_BT)

    assert distance(our_logits(pair.own, tokens_BT, real_BT, pieces), expected, real_BT) < 1e-5


class Prompted:
    """A decoder that has read a prompt, as a search uses it."""

    def __init__(self, model: CausalDecoder, tokens_BT: Tensor, real_BT: Tensor) -> None:
        self.model, self.cache = model, model.new_cache()
        self.first: Tensor | None = model.logits(model.decode(tokens_BT, real_BT, self.cache)[:, -1])

    def step(self, tokens_R: Tensor) -> Tensor:
        first, self.first = self.first, None
        if first is not None:
            return first
        return self.model.logits(self.model.decode(tokens_R[:, None], cache=self.cache)[:, 0])

    def reorder(self, rows_R: Tensor, sources_N: Tensor | None) -> None:
        self.cache.reorder(rows_R, sources_N)


def our_text(model: CausalDecoder, tokens_BT: Tensor, real_BT: Tensor, beam: int, ends: bool = True) -> list[list[int]]:
    with torch.inference_mode():
        found = beam_search(
            Prompted(model, tokens_BT, real_BT),
            [9] * len(tokens_BT),
            SearchSettings(beam=beam, alpha=0.0),
            begin=BEGIN,
            end=END,
            processors=[Ban([PAD, BEGIN] + [END] * (not ends))],
        )
    return [list(hypotheses[0].ids) for hypotheses in found]


def their_text(model: Any, tokens_BT: Tensor, real_BT: Tensor, beam: int, ends: bool = True) -> list[list[int]]:
    """Ranked by log-probability alone: beyond that, theirs and ours divide by different powers of the length."""
    settings = transformers.GenerationConfig(
        num_beams=beam,
        max_new_tokens=9,
        do_sample=False,
        length_penalty=0.0,
        early_stopping="never" if beam > 1 else False,
        pad_token_id=PAD,
        eos_token_id=END,
        suppress_tokens=[PAD, BEGIN] + [END] * (not ends),
    )
    with torch.inference_mode():
        rows = model.generate(tokens_BT, attention_mask=real_BT.long(), generation_config=settings)
    texts = rows[:, tokens_BT.shape[1] :].tolist()
    return [text[: text.index(END)] if END in text else text for text in texts]


@pytest.mark.parametrize("ends", [True, False], ids=["to its end", "endless"])
@pytest.mark.parametrize("beam", [1, 4])
def test_searches_find_the_same(pair: Conversion, beam: int, ends: bool) -> None:
    tokens_BT, real_BT = batch("left")

    assert our_text(pair.own, tokens_BT, real_BT, beam, ends) == their_text(
        pair.foreign, tokens_BT, real_BT, beam, ends
    )


def test_padding_on_the_left_changes_no_text(pair: Conversion) -> None:
    tokens_BT, real_BT = batch("left", (9, 3))

    alone = [
        our_text(pair.own, row[real][None], real[real][None], 1)[0]
        for row, real in zip(tokens_BT, real_BT, strict=True)
    ]

    assert our_text(pair.own, tokens_BT, real_BT, 1) == alone


def test_what_we_write_loads_and_is_what_we_read(pair: Conversion) -> None:
    tokens_BT, real_BT = batch("left")

    difference = distance(
        their_logits(pair.back, tokens_BT, real_BT), their_logits(pair.foreign, tokens_BT, real_BT), real_BT
    )

    assert difference < (1e-5 if moved(pair) else 1e-9)
    assert [name for name in pair.changed if not moved(pair) or "norm" not in name] == []


def moved(pair: Conversion) -> bool:
    """Gemma stores the normalisations' distance from one; the rounding of that sum is not undone by a difference."""
    return pair.case.name.startswith("gemma")


def test_what_we_write_is_read_back(pair: Conversion) -> None:
    again, _, plan = huggingface.read(pair.written)

    assert plan == pair.plan
    for name, tensor in pair.own.state_dict().items():
        assert torch.allclose(again.state_dict()[name], tensor, rtol=0, atol=1e-6 if moved(pair) else 0), name


def test_a_base_model_alone_has_no_prefix(pair: Conversion, tmp_path: Path) -> None:
    tokens_BT, real_BT = batch("right")
    prefix = f"{pair.foreign.base_model_prefix}."
    stored = tensors(pair.stored).items()
    stripped = {name.removeprefix(prefix): tensor for name, tensor in stored if name.startswith(prefix)}
    save_file(stripped, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((pair.stored / "config.json").read_bytes())

    if pair.plan.settings.tie == "none":
        with pytest.raises(UserError, match=r"fit the configuration; missing: lm_head\.weight$"):
            huggingface.read(tmp_path)
    else:
        again, _, _ = huggingface.read(tmp_path)
        assert torch.equal(our_logits(again, tokens_BT, real_BT), our_logits(pair.own, tokens_BT, real_BT))


# Tied weights (one matrix under two names)


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    foreign(relative("llama", tie_word_embeddings=True)).save_pretrained(tmp_path / "tied")
    return tmp_path / "tied"


def test_a_tied_matrix_stays_one(tied: Path, tmp_path: Path) -> None:
    model, _, plan = huggingface.read(tied)
    assert isinstance(model, CausalDecoder)
    tokens_BT, _ = batch("none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.logits(model.decode(tokens_BT)).square().sum().backward()
    optimizer.step()
    huggingface.write(tmp_path / "again", model, plan.ids)

    assert model.output is model.embedding.weight
    names = tensors(tmp_path / "again")
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    matrix = VOCABULARY * 24
    assert sum(tensor.numel() == matrix for tensor in names.values()) == 1


def test_a_tied_file_is_no_untied_model(tied: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing: lm_head\.weight$"):
        huggingface.read(edited(tied, tmp_path, tie_word_embeddings=False))


@pytest.mark.parametrize("same", [True, False])
def test_a_tied_model_may_hold_its_matrix_twice_if_it_is_the_same(tied: Path, same: bool) -> None:
    weights = load_file(tied / "model.safetensors")
    output = weights["model.embed_tokens.weight"].clone() + (not same)
    save_file(weights | {"lm_head.weight": output}, tied / "model.safetensors")

    if same:
        model, _, _ = huggingface.read(tied)
        assert torch.equal(model.state_dict()["output"], output)
    else:
        with pytest.raises(UserError, match=r"lm_head\.weight should be the same as model\.embed_tokens\.weight"):
            huggingface.read(tied)


# Precision


@pytest.mark.parametrize("name", ["llama, llama3", "llama, yarn", "gemma"])
def test_angles_stay_exact_in_half_precision(name: str, tmp_path: Path) -> None:
    theirs = foreign(CASES[name])
    theirs.save_pretrained(tmp_path)
    ours, _, _ = huggingface.read(tmp_path, torch.bfloat16)
    assert isinstance(ours, CausalDecoder)
    ours = ours.float().bfloat16()
    rotary = theirs.model.rotary_emb
    phase = torch.arange(4096, dtype=torch.float64)[:, None] * rotary.inv_freq.double()

    turn = ours.embedding.positions.turn(run(0, 4096))

    assert turn.cos.dtype == turn.sin.dtype == torch.float32
    # The bound is their rounding of frequencies, which grows with the position.
    assert (turn.cos[0, 0] - phase.cos() * rotary.attention_scaling).abs().max() < 1e-3
    assert (turn.sin[0, 0] - phase.sin() * rotary.attention_scaling).abs().max() < 1e-3
    assert ours.decode(torch.tensor([[3, 4, 5]])).dtype == torch.bfloat16


def test_weights_keep_the_precision_of_the_file(tmp_path: Path) -> None:
    for name in ("qwen3", "gemma2"):
        theirs = foreign(CASES[name]).to(torch.float16)
        theirs.save_pretrained(tmp_path / name)
        ours, architecture, plan = huggingface.read(tmp_path / name, None)
        huggingface.write(tmp_path / f"{name} again", ours, plan.ids, name=architecture.name)
        before, after = tensors(tmp_path / name), tensors(tmp_path / f"{name} again")
        assert {tensor.dtype for tensor in before.values()} == {torch.float16}
        # A sum of a weight and one is kept in float32, so that even Gemma's come back bit for bit.
        assert [key for key in before if not torch.equal(before[key], after[key].half())] == []
