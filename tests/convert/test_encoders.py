"""What configurations of BERT, RoBERTa and ViT may say, and which of our encoders have one.

Shapes: B batch, S positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from parity.conversion import Case, foreign, reload
from parity.decoders import edited
from regard.convert import huggingface
from regard.convert.mapping import Ids
from regard.errors import UserError
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder

VOCABULARY = 29
SIZE: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT: dict[str, Any] = SIZE | {"vocab_size": VOCABULARY, "max_position_embeddings": 20}
FOREIGN = {
    "bert": Case("bert", "BertForMaskedLM", lambda: transformers.BertConfig(**TEXT)),
    "bert, text": Case("bert", "BertForSequenceClassification", lambda: transformers.BertConfig(**TEXT)),
    "roberta": Case("roberta", "RobertaForMaskedLM", lambda: transformers.RobertaConfig(**TEXT)),
    "vit": Case("vit", "ViTForImageClassification", lambda: transformers.ViTConfig(**SIZE, image_size=8, patch_size=4)),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a foreign model."""
    made: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("foreign")
            foreign(FOREIGN[name]).save_pretrained(made[name])
        return made[name]

    return directory


REFUSED = [
    ("bert", {"is_decoder": True}, "is_decoder = True"),
    ("bert", {"add_cross_attention": True}, "add_cross_attention = True"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
    ("bert", {"hidden_act": "relu"}, "hidden_act = relu with a head for masked words"),
    ("bert", {"hidden_act": "mish"}, "hidden_act = 'mish'"),
    ("bert", {"architectures": ["BertForQuestionAnswering"]}, "architectures = BertForQuestionAnswering (supported: "),
    ("bert", {"architectures": ["BertLMHeadModel"]}, "architectures = BertLMHeadModel"),
    ("bert, text", {"problem_type": "multi_label_classification"}, "problem_type = 'multi_label_classification'"),
    ("roberta", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ("vit", {"patch_size": [4, 2]}, "patch_size = 4, 2"),
    ("vit", {"image_size": 9}, "patches of 4 pixels do not fill an image of 9 x 9"),
    ("vit", {"qkv_bias": False}, "qkv_bias where the file has such biases"),
    ("vit", {"architectures": ["ViTForMaskedImageModeling"]}, "architectures = ViTForMaskedImageModeling"),
]


@pytest.mark.parametrize(("name", "values", "sentence"), REFUSED, ids=[f"{n} {next(iter(v))}" for n, v, _ in REFUSED])
def test_what_would_change_results_is_refused(
    stored: Callable[[str], Path], tmp_path: Path, name: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refusal:
        huggingface.read(edited(stored(name), tmp_path, **values))

    assert sentence in str(refusal.value)
    assert str(tmp_path / "config.json") in str(refusal.value)


def test_a_head_that_the_file_lacks_is_missing(stored: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing: bert\.pooler\.dense\.bias, .*; not expected: cls"):
        huggingface.read(edited(stored("bert"), tmp_path, architectures=["BertForSequenceClassification"]))


@pytest.mark.parametrize("value", ["single_label_classification", None])
def test_one_label_of_several_is_what_heads_give(stored: Callable[[str], Path], tmp_path: Path, value: Any) -> None:
    model, _, _ = huggingface.read(edited(stored("bert, text"), tmp_path, problem_type=value))

    assert isinstance(model, BidirectionalEncoder)
    assert model.head_settings == HeadSettings(kind="text", labels=("LABEL_0", "LABEL_1"))


def test_words_of_the_first_years_change_nothing(stored: Callable[[str], Path], tmp_path: Path) -> None:
    words = {
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_type": "first_token_transform",
        "gradient_checkpointing": False,
        "position_embedding_type": "absolute",
    }

    _, _, plan = huggingface.read(edited(stored("bert"), tmp_path, **words))

    assert plan == huggingface.read(stored("bert"))[2]


# Models that begin with us


def own(head: HeadSettings | None, vocabulary: int | None = VOCABULARY, **values: Any) -> BidirectionalEncoder:
    base = {
        "d_model": 16,
        "d_ff": 20,
        "heads": 2,
        "encoder_layers": 2,
        "positions": "learned",
        "feed_forward": "gelu",
        "embedding_scale": 1.0,
        "embedding_norm": True,
        "max_length": 12,
    }
    torch.manual_seed(5)
    model = BidirectionalEncoder(ModelSettings.model_validate(base | values), vocabulary, head)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


HEADS = {
    "BertForMaskedLM": HeadSettings(kind="masked-lm"),
    "BertForSequenceClassification": HeadSettings(kind="text", labels=("no", "yes", "maybe")),
    "BertForTokenClassification": HeadSettings(kind="tokens", labels=("B", "I", "O")),
}


@pytest.mark.parametrize("segments", [0, 1, 2])
@pytest.mark.parametrize(("kind", "head"), HEADS.items(), ids=HEADS)
def test_our_encoders_become_bert(kind: str, head: HeadSettings, segments: int, tmp_path: Path) -> None:
    """Without segments of ours, theirs has one, of zeros."""
    model = own(head, segments=segments)
    tokens_BS = torch.randint(5, VOCABULARY, (3, 7))
    real_BS = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]

    architecture = huggingface.write(tmp_path / "model", model, Ids(pad=4))

    assert architecture.name == "bert"
    theirs = reload(kind, tmp_path / "model")
    with torch.inference_mode():
        ours = model.logits(model.encode(tokens_BS, real_BS))
        logits = theirs(tokens_BS, attention_mask=real_BS.long()).logits
    difference = (ours - logits).abs()
    assert (difference if head.kind == "text" else difference[real_BS]).max() < 1e-5
    assert theirs.config.pad_token_id == 4
    if head.labels:
        assert tuple(theirs.config.id2label.values()) == head.labels


def test_our_encoders_become_roberta(tmp_path: Path) -> None:
    """Its positions begin behind the padding token's id."""
    model = own(HEADS["BertForMaskedLM"], tie="none")
    tokens_BS = torch.randint(5, VOCABULARY, (2, 12))

    huggingface.write(tmp_path / "model", model, Ids(pad=3, bos=0, eos=2), name="roberta")

    theirs = reload("RobertaForMaskedLM", tmp_path / "model")
    with torch.inference_mode():
        assert (model.logits(model.encode(tokens_BS)) - theirs(tokens_BS).logits).abs().max() < 1e-5
    table = load_file(tmp_path / "model/model.safetensors")["roberta.embeddings.position_embeddings.weight"]
    assert table.shape == (12 + 4, 16)
    assert (table[:4] == 0).all()
    assert json.loads((tmp_path / "model/config.json").read_bytes())["max_position_embeddings"] == 16


def test_our_encoders_of_images_become_vit(tmp_path: Path) -> None:
    model = own(
        HeadSettings(kind="text", labels=("0", "1"), pooler=False),
        None,
        input="patches",
        patches={"height": 8, "width": 8, "size": 4, "channels": 1},
        norm_placement="pre",
        embedding_norm=False,
        embedding_scale=None,
        tie="decoder",
        max_length=1024,
    )
    images_BCHW = torch.randn(3, 1, 8, 8)

    architecture = huggingface.write(tmp_path / "model", model)

    assert architecture.name == "vit"
    theirs = reload("ViTForImageClassification", tmp_path / "model")
    with torch.inference_mode():
        assert (model.logits(model.encode(images_BCHW)) - theirs(images_BCHW).logits).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("head", "values", "sentence"),
    [
        (HeadSettings(kind="text", labels=("a",), pooler=False), {}, "bert: head.pooler = False"),
        (None, {"embedding_scale": None}, "embedding_scale = 4.0"),
        (None, {"norm_placement": "pre"}, "norm_placement = pre"),
        (None, {"positions": "sinusoidal"}, "positions = sinusoidal"),
        (None, {"feed_forward": "swiglu"}, "feed_forward = swiglu"),
        (HeadSettings(kind="masked-lm"), {"feed_forward": "relu"}, "bert: bert: not supported: hidden_act = relu"),
    ],
    ids=["pooler", "scale", "norm", "positions", "gated", "relu"],
)
def test_what_no_architecture_computes_is_not_written(
    head: HeadSettings | None, values: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refusal:
        huggingface.write(tmp_path / "model", own(head, **values), name="bert")

    assert sentence in str(refusal.value)
