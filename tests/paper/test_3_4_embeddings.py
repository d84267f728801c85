"""Section 3.4: embeddings times sqrt(d_model), one matrix shared by both embeddings and the softmax."""

from __future__ import annotations

import math

import pytest
import torch

from regard.model import store
from regard.model.places import run
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder


def model(tie: str, source: int = 7, target: int = 7) -> EncoderDecoder:
    values = {
        "d_model": 16,
        "d_ff": 32,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.0,
        "tie": tie,
    }
    return EncoderDecoder(ModelSettings.model_validate(values), source, target)


def test_embeddings_are_multiplied_by_the_root_of_d_model() -> None:
    tied = model("all")
    embedding = tied.source_embedding
    with torch.no_grad():
        embedding.weight[3] = torch.arange(16.0)
    position_0 = torch.tensor([0.0, 1.0] * 8)
    torch.testing.assert_close(embedding(torch.tensor([[3]]), run(0, 1))[0, 0], torch.arange(16.0) * 4 + position_0)


def test_embedded_tokens_have_unit_variance_and_logits_of_normal_states_too() -> None:
    torch.manual_seed(0)
    wide = EncoderDecoder(ModelSettings(d_model=256, heads=1, encoder_layers=1, decoder_layers=1), 500, 500)
    assert (wide.output * math.sqrt(256)).std().item() == pytest.approx(1.0, abs=0.02)
    assert wide.logits(torch.randn(100, 256)).std().item() == pytest.approx(1.0, abs=0.02)


def test_logits_are_products_with_the_output_matrix() -> None:
    torch.manual_seed(0)
    tied, hidden = model("all"), torch.randn(2, 3, 16)
    torch.testing.assert_close(tied.logits(hidden), torch.einsum("btd,vd->btv", hidden, tied.output))


@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_tying_shares_storage(tie: str, matrices: int) -> None:
    tied = model(tie)
    source, target, output = tied.source_embedding.weight, tied.target_embedding.weight, tied.output
    assert len({matrix.data_ptr() for matrix in (source, target, output)}) == matrices
    assert (target is output) == (tie != "none")
    assert (source is target) == (tie == "all")
    vocabulary_sized = [tensor for tensor in store.parameters(tied).values() if tensor.shape == (7, 16)]
    assert len(vocabulary_sized) == matrices


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_tied_matrices_stay_one_through_a_step(tie: str) -> None:
    torch.manual_seed(0)
    tied = model(tie)
    optimizer = torch.optim.SGD(tied.parameters(), lr=0.1)
    hidden = tied(torch.tensor([[3, 4]]), torch.ones(1, 2, dtype=torch.bool), torch.tensor([[1, 5]]))
    tied.logits(hidden).logsumexp(-1).sum().backward()
    before = tied.output.detach().clone()
    optimizer.step()
    assert not torch.equal(tied.output, before)
    assert torch.equal(tied.target_embedding.weight, tied.output) == (tie != "none")
    assert torch.equal(tied.source_embedding.weight, tied.output) == (tie == "all")


def test_separate_vocabularies_need_separate_embeddings() -> None:
    assert model("decoder", 9, 7).source_embedding.weight.shape == (9, 16)
    assert model("none", 9, 7).output.shape == (7, 16)
    with pytest.raises(ValueError, match="needs one vocabulary"):
        model("all", 9, 7)
