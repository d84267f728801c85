"""Low-rank adapters: W + (alpha / r) B A and nothing else, whatever uses the weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.model import adapters, store
from regard.model.adapters import AdapterSettings
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder, CausalDecoder, EncoderDecoder, Model

SMALL = ModelSettings(d_model=12, d_ff=20, heads=2, encoder_layers=2, decoder_layers=2, max_length=32, dropout=0.0)
GATED = SMALL.model_copy(
    update={"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "kv_heads": 1, "attention_bias": "none"}
)
ALL = AdapterSettings(
    rank=3,
    alpha=5.0,
    targets=(
        "self_attention.query",
        "self_attention.key",
        "self_attention.value",
        "self_attention.output",
        "feed_forward.expand",
        "feed_forward.contract",
    ),
)
TOKENS = torch.tensor([[1, 7, 9, 3], [1, 4, 4, 8]])
VOCABULARY = 15


def model(settings: ModelSettings = GATED, seed: int = 0) -> CausalDecoder:
    torch.manual_seed(seed)
    return CausalDecoder(settings, VOCABULARY).eval()


def output(model: Model) -> Tensor:
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            memory = model.encode(TOKENS, torch.ones_like(TOKENS, dtype=torch.bool))
            return model.logits(model.decode(TOKENS, memory))
        if isinstance(model, CausalDecoder):
            return model.logits(model.decode(TOKENS))
        return model.logits(model.encode(TOKENS))


def train(model: Model, seed: int = 5) -> None:
    """Give every parameter that learns another value."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.3 * torch.randn_like(parameter))


def test_the_model_begins_as_it_was() -> None:
    changed = model()
    before = output(changed)
    adapters.apply(changed, ALL)
    assert torch.equal(output(changed), before)


@pytest.mark.parametrize("settings", [SMALL, GATED], ids=["paper", "gated"])
def test_each_block_of_rows_has_a_product_of_its_own(settings: ModelSettings) -> None:
    plain, changed = model(settings), model(settings)
    adapters.apply(changed, ALL)
    train(changed)
    tensors = adapters.adapters(changed, ALL).tensors
    with torch.no_grad():
        for index, layer in enumerate(plain.decoder):
            attention = layer.self_attention
            start = 0
            for name, width in zip(("query", "key", "value"), attention.widths, strict=True):
                place = f"decoder.{index}.self_attention.{name}"
                change = 5.0 / 3 * tensors[f"{place}.b"] @ tensors[f"{place}.a"]
                attention.in_projection.weight[start : start + width] += change
                start += width
            for part, linear in (
                ("self_attention.output", attention.out_projection),
                ("feed_forward.contract", layer.feed_forward.contract),
            ):
                place = f"decoder.{index}.{part}"
                linear.weight += 5.0 / 3 * tensors[f"{place}.b"] @ tensors[f"{place}.a"]
            place = f"decoder.{index}.feed_forward.expand"
            change = 5.0 / 3 * tensors[f"{place}.b"] @ tensors[f"{place}.a"]
            layer.feed_forward.expand.weight[-settings.d_ff :] += change  # behind the gate, where there is one
    torch.testing.assert_close(output(changed), output(plain), rtol=1e-5, atol=1e-5)


def test_only_adapters_learn_and_the_weights_stay_to_the_byte() -> None:
    plain, changed = model(), model()
    adapters.apply(changed, AdapterSettings(rank=2))
    learning = {name for name, parameter in changed.named_parameters() if parameter.requires_grad}
    assert len(learning) == 2 * 2 * 2  # layers, query and value, A and B
    assert all(".parametrizations.weight.0." in name for name in learning)
    optimizer = torch.optim.Adam(changed.parameters(), lr=0.1)
    before = output(changed)
    for _ in range(3):
        optimizer.zero_grad()
        changed.logits(changed.decode(TOKENS)).logsumexp(-1).sum().backward()
        optimizer.step()
    assert not torch.allclose(output(changed), before)
    frozen = {name.replace("parametrizations.weight.original", "weight"): tensor
              for name, tensor in store.parameters(changed).items() if name not in learning}  # fmt: skip
    assert frozen.keys() == store.parameters(plain).keys()
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in store.parameters(plain).items())


def test_keys_stay_where_only_queries_and_values_adapt() -> None:
    changed = model(SMALL)
    before = changed.decoder[0].self_attention.in_projection.weight.detach().clone()
    adapters.apply(changed, AdapterSettings(rank=2))
    train(changed)
    changes = (changed.decoder[0].self_attention.in_projection.weight - before).split(12)
    assert [bool(change.any()) for change in changes] == [True, False, True]


@pytest.mark.parametrize("family", ["encoder-decoder", "causal-decoder", "encoder"])
def test_merged_and_not_merged_are_the_same(family: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    models: dict[str, Model] = {
        "encoder-decoder": EncoderDecoder(SMALL, VOCABULARY, VOCABULARY),
        "causal-decoder": CausalDecoder(GATED, VOCABULARY),
        "encoder": BidirectionalEncoder(SMALL, VOCABULARY, HeadSettings(kind="masked-lm")),
    }
    changed = models[family].eval()
    names = list(store.parameters(changed))
    settings = ALL
    if family == "encoder-decoder":
        settings = ALL.model_copy(
            update={"targets": (*ALL.targets, "memory_attention.query", "memory_attention.value")}
        )
    adapters.apply(changed, settings)
    train(changed)
    expected = output(changed)
    adapters.merge(changed)
    torch.testing.assert_close(output(changed), expected, rtol=1e-5, atol=1e-5)
    assert sorted(store.parameters(changed)) == sorted(names)
    store.write(tmp_path, changed)
    torch.testing.assert_close(output(store.read(tmp_path)), expected, rtol=1e-5, atol=1e-5)


def test_unmerged_is_the_model_before_with_its_adapters() -> None:
    plain, changed = model(), model()
    adapters.apply(changed, ALL)
    train(changed)
    expected, kept = output(changed), adapters.adapters(changed, ALL)
    adapters.merge(changed)
    adapters.unmerge(changed, kept)
    torch.testing.assert_close(output(changed), expected, rtol=1e-5, atol=1e-5)
    weight = changed.decoder[1].self_attention.in_projection.parametrizations.weight.original
    torch.testing.assert_close(weight, plain.decoder[1].self_attention.in_projection.weight, rtol=1e-5, atol=1e-5)


def test_saved_adapters_change_another_copy_of_the_model_alike(tmp_path: Path) -> None:
    changed = model()
    adapters.apply(changed, ALL)
    train(changed)
    adapters.save(tmp_path / "adapters", adapters.adapters(changed, ALL))
    other = model()
    adapters.attach(other, adapters.load(tmp_path / "adapters"))
    assert torch.equal(output(other), output(changed))
    with pytest.raises(UserError, match=r"these do not fit: decoder\.0\.feed_forward\.contract\.a"):
        adapters.attach(model(GATED.model_copy(update={"d_ff": 24})), adapters.load(tmp_path / "adapters"))


def test_a_new_head_learns_as_a_whole_and_is_saved_beside() -> None:
    torch.manual_seed(0)
    labels = HeadSettings(kind="text", labels=("a", "b"))
    changed = BidirectionalEncoder(SMALL, VOCABULARY, labels).eval()
    adapters.apply(changed, AdapterSettings(), learning=("head.",))
    train(changed)
    kept = adapters.adapters(changed, AdapterSettings())
    assert {"head.output.weight", "head.dense.bias", "encoder.1.self_attention.value.b"} <= kept.tensors.keys()
    torch.manual_seed(0)
    other = BidirectionalEncoder(SMALL, VOCABULARY, labels).eval()
    adapters.attach(other, kept)
    assert torch.equal(output(other), output(changed))


def test_dropout_is_on_what_a_reads_and_only_in_training() -> None:
    changed = model()
    adapters.apply(changed, ALL.model_copy(update={"dropout": 0.5}))
    train(changed)
    assert torch.equal(output(changed), output(changed))
    changed.train()
    assert not torch.equal(output(changed), output(changed))
    adapters.merge(changed)
    assert torch.equal(output(changed), output(changed))


def test_a_map_that_the_model_does_not_have_is_named() -> None:
    settings = AdapterSettings(targets=("memory_attention.query",))
    with pytest.raises(
        UserError, match=r"no memory_attention\.query; it has self_attention\.query, .*feed_forward\.gate"
    ):
        adapters.apply(model(), settings)
