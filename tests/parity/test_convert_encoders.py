"""BERT, RoBERTa and ViT: the models of `transformers` and ours made of them give the same, and back.

Shapes: B batch, S positions, D d_model, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from parity.conversion import Case, Conversion, foreign, tensors
from regard.convert import huggingface
from regard.errors import UserError
from regard.model.transformer import BidirectionalEncoder

VOCABULARY, PAD = 31, 1
SIZE: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT: dict[str, Any] = SIZE | {"vocab_size": VOCABULARY, "max_position_embeddings": 20, "pad_token_id": PAD}
IMAGE: dict[str, Any] = SIZE | {"image_size": [8, 12], "patch_size": 4, "num_channels": 2}
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}


def bert(head: str, kind: str = "Bert", changed: tuple[str, ...] = (), **more: Any) -> Case:
    config = getattr(transformers, f"{kind}Config")
    name = {"XLMRoberta": "xlm-roberta"}.get(kind, kind.lower())
    return Case(name, f"{kind}{head}", lambda: config(**(TEXT | more)), changed=frozenset(changed))


def roberta(head: str, *changed: str, kind: str = "Roberta", **more: Any) -> Case:
    """The rows of positions up to the padding token's id are used by no token, and written as zeros."""
    return bert(head, kind, ("roberta.embeddings.position_embeddings.weight", *changed), **more)


def vit(**more: Any) -> Case:
    return Case("vit", "ViTForImageClassification", lambda: transformers.ViTConfig(**(IMAGE | LABELS | more)))


# A bias that is stored beside the one that is used, where the output is not tied.
CASES = {
    "bert, masked words": bert("ForMaskedLM"),
    "bert, masked words, untied": bert("ForMaskedLM", changed=("cls.predictions.bias",), tie_word_embeddings=False),
    "bert, text": bert("ForSequenceClassification", hidden_act="relu", type_vocab_size=3, **LABELS),
    "bert, tokens": bert("ForTokenClassification", hidden_act="gelu_new", layer_norm_eps=1e-3, **LABELS),
    "roberta, masked words": roberta("ForMaskedLM", hidden_act="relu"),
    "roberta, masked words, untied": roberta("ForMaskedLM", "lm_head.bias", tie_word_embeddings=False),
    "roberta, text": roberta("ForSequenceClassification", type_vocab_size=1, pad_token_id=3, **LABELS),
    "roberta, tokens": roberta("ForTokenClassification", **LABELS),
    "xlm-roberta, text": roberta("ForSequenceClassification", kind="XLMRoberta", **LABELS),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    conversion = Conversion(request.param, tmp_path_factory.mktemp("pair"))
    assert conversion.architecture.name == request.param.name
    return conversion


def batch(side: str, lengths: tuple[int, ...] = (9, 2, 6)) -> tuple[Tensor, Tensor]:
    """Tokens, and which of them are real."""
    generator = torch.Generator().manual_seed(3)
    longest = max(lengths)
    tokens_BS = torch.randint(5, VOCABULARY, (len(lengths), longest), generator=generator)
    real_BS = torch.arange(longest) < torch.tensor(lengths)[:, None]
    real_BS = real_BS.flip(1) if side == "left" else real_BS
    return tokens_BS, real_BS


def their_logits(model: Any, tokens_BS: Tensor, real_BS: Tensor, **more: Tensor) -> Tensor:
    tokens_BS = tokens_BS.masked_fill(~real_BS, model.config.pad_token_id)
    if model.config.model_type == "bert":
        more["position_ids"] = (real_BS.cumsum(dim=1) - 1).clamp(min=0)
    with torch.inference_mode():
        return model(input_ids=tokens_BS, attention_mask=real_BS.long(), **more).logits


def our_logits(model: Any, tokens_BS: Tensor, real_BS: Tensor, segments_BS: Tensor | None = None) -> Tensor:
    with torch.inference_mode():
        return model.logits(model.encode(tokens_BS, real_BS, segments_BS=segments_BS))


def distance(left: Tensor, right: Tensor, real_BS: Tensor) -> float:
    """The largest difference, at real positions where there is a value for each."""
    assert left.shape == right.shape
    if left.dim() == 3:
        left, right = left[real_BS], right[real_BS]
    return float((left - right).abs().max())


# Of a text as a whole the first column is read, which on the left is padding.
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_logits_are_the_same(pair: Conversion, side: str) -> None:
    if side == "left" and pair.own.head_settings.kind == "text":
        pytest.skip("a text is read at its first column")
    tokens_BS, real_BS = batch(side, (9, 9, 9) if side == "none" else (9, 2, 6))

    expected = their_logits(pair.foreign, tokens_BS, real_BS)

    assert distance(our_logits(pair.own, tokens_BS, real_BS), expected, real_BS) < 1e-5


def test_logits_of_two_segments_are_the_same(pair: Conversion) -> None:
    tokens_BS, real_BS = batch("right")
    count = pair.plan.settings.segments
    segments_BS = (torch.arange(9) > 3).long().clamp(max=count - 1).expand(3, -1)

    theirs = their_logits(pair.foreign, tokens_BS, real_BS, token_type_ids=segments_BS)

    ours = our_logits(pair.own, tokens_BS, real_BS, segments_BS)
    assert distance(ours, theirs, real_BS) < 1e-5
    assert (distance(ours, our_logits(pair.own, tokens_BS, real_BS), real_BS) > 1e-3) == (count > 1)


def test_what_we_write_loads_and_is_what_we_read(pair: Conversion) -> None:
    tokens_BS, real_BS = batch("right")

    theirs = their_logits(pair.back, tokens_BS, real_BS)

    assert distance(theirs, their_logits(pair.foreign, tokens_BS, real_BS), real_BS) == 0
    assert pair.changed == pair.case.changed
    again, _, plan = huggingface.read(pair.written)
    assert plan == pair.plan
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in pair.own.state_dict().items())


def test_labels_keep_their_names(pair: Conversion) -> None:
    head = pair.own.head_settings

    if head.kind != "masked-lm":
        assert head.labels == ("bad", "fair", "good")
        assert pair.back.config.id2label == LABELS["id2label"]


def test_a_masked_word_is_predicted_through_one_matrix(pair: Conversion) -> None:
    model: BidirectionalEncoder = pair.own
    if model.head_settings is None or model.head_settings.kind != "masked-lm":
        pytest.skip("has another head")
    tokens_BS, real_BS = batch("right")
    states_ND = model.encode(tokens_BS, real_BS)[real_BS]

    logits_NV = model.predict(states_ND) @ model.output.T + model.output_bias

    expected = their_logits(pair.foreign, tokens_BS, real_BS)[real_BS]
    assert (logits_NV - expected).abs().max() < 1e-5
    assert (model.output is model.embedding.weight) == pair.plan.settings.ties_output


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
def test_a_model_without_a_head_gives_the_same_states(kind: str, tmp_path: Path) -> None:
    """Its file has no prefix; the layer that pools is of a head."""
    theirs = foreign(bert("Model", kind))
    theirs.save_pretrained(tmp_path / "foreign")
    tokens_BS, real_BS = batch("right")
    tokens_BS = tokens_BS.masked_fill(~real_BS, PAD)

    ours, architecture, plan = huggingface.read(tmp_path / "foreign")
    huggingface.write(tmp_path / "written", ours, plan.ids, name=architecture.name)

    back = without_pooler(f"{kind}Model", tmp_path / "written")
    expected = theirs(tokens_BS, attention_mask=real_BS.long()).last_hidden_state
    assert isinstance(ours, BidirectionalEncoder)
    assert plan.head is None
    assert (ours.encode(tokens_BS, real_BS) - expected)[real_BS].abs().max() < 1e-5
    assert torch.equal(back(tokens_BS, attention_mask=real_BS.long()).last_hidden_state[real_BS], expected[real_BS])


def without_pooler(kind: str, directory: Path) -> Any:
    model, report = getattr(transformers, kind).from_pretrained(
        directory, add_pooling_layer=False, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    return model.eval()


def test_files_of_pre_training_and_of_other_ages_are_read(tmp_path: Path) -> None:
    """Two heads and a pooling layer, gamma and beta for weight and bias, positions as a tensor, no prefix at all."""
    theirs = foreign(bert("ForPreTraining"))
    theirs.save_pretrained(tmp_path)
    stored = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors(tmp_path).items()
    }
    stored["bert.embeddings.position_ids"] = torch.arange(20)
    save_file(stored, tmp_path / "model.safetensors")
    tokens_BS, real_BS = batch("right")

    ours, _, plan = huggingface.read(tmp_path)

    assert plan.head is not None
    assert plan.head.kind == "masked-lm"
    with torch.inference_mode():
        expected = theirs(tokens_BS, attention_mask=real_BS.long()).prediction_logits
    assert distance(our_logits(ours, tokens_BS, real_BS), expected, real_BS) < 1e-5


def test_a_tied_matrix_stays_one(tmp_path: Path) -> None:
    foreign(bert("ForMaskedLM")).save_pretrained(tmp_path / "foreign")
    model, _, plan = huggingface.read(tmp_path / "foreign")
    assert isinstance(model, BidirectionalEncoder)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.logits(model.encode(batch("none")[0])).square().sum().backward()
    optimizer.step()
    huggingface.write(tmp_path / "again", model, plan.ids)

    assert model.output is model.embedding.weight
    assert (
        sum(tensor.numel() == VOCABULARY * 24 for tensor in load_file(tmp_path / "again/model.safetensors").values())
        == 1
    )


def test_a_tied_file_is_no_untied_model(tmp_path: Path) -> None:
    model = foreign(bert("ForMaskedLM"))
    model.save_pretrained(tmp_path)
    model.config.tie_word_embeddings = False
    model.config.save_pretrained(tmp_path)

    with pytest.raises(UserError, match=r"missing: cls\.predictions\.decoder\.weight$"):
        huggingface.read(tmp_path)


# Images


IMAGES = {
    "square": vit(image_size=12, hidden_act="gelu_new"),
    "wide": vit(),
    "without some biases": vit(qkv_bias=False),
}


def images(config: Any) -> Tensor:
    size = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
    return torch.randn(3, config.num_channels, *size, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("case", IMAGES.values(), ids=IMAGES)
def test_images_get_the_same_labels(case: Case, tmp_path: Path) -> None:
    pair = Conversion(case, tmp_path)
    images_BCHW = images(pair.foreign.config)
    own: Any = pair.own

    with torch.inference_mode():
        expected = pair.foreign(pixel_values=images_BCHW).logits
        back = pair.back(pixel_values=images_BCHW).logits
        ours = own.logits(own.encode(images_BCHW))

    assert (ours - expected).abs().max() < 1e-5
    assert (back - expected).abs().max() < 1e-6
    # Biases that a model lacks are zeros in what is written.
    added = {
        name for name in pair.changed if case is not IMAGES["without some biases"] or "attention.attention" not in name
    }
    assert added == set()
    assert own.head_settings.labels == ("bad", "fair", "good")
    assert len(own.embedding.positions.weight) == 1 + own.settings.patches.count


def test_images_without_labels_have_the_same_states(tmp_path: Path) -> None:
    theirs = foreign(Case("vit", "ViTModel", lambda: transformers.ViTConfig(**IMAGE)))
    theirs.save_pretrained(tmp_path / "foreign")
    images_BCHW = images(theirs.config)

    ours, _, plan = huggingface.read(tmp_path / "foreign")
    huggingface.write(tmp_path / "written", ours)

    back = without_pooler("ViTModel", tmp_path / "written")
    expected = theirs(pixel_values=images_BCHW).last_hidden_state
    assert isinstance(ours, BidirectionalEncoder)
    assert plan.head is None
    assert (ours.encode(images_BCHW) - expected).abs().max() < 1e-5
    assert torch.equal(back(pixel_values=images_BCHW).last_hidden_state, expected)
