"""What each setting says is what the part does that it is for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.model.attention import AttentionValues, MultiHeadAttention, watching
from regard.model.norms import NORMS
from regard.model.settings import HeadSettings, ModelSettings
from regard.model.transformer import BidirectionalEncoder

X_BTD = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
NORM_CLASSES = (nn.LayerNorm, nn.RMSNorm)
IDS_BS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 3]])


def settings(**changes: Any) -> ModelSettings:
    tiny = {"d_model": 16, "d_ff": 24, "heads": 2, "encoder_layers": 1, "dropout": 0.0}
    return ModelSettings.model_validate(tiny | changes)


def encoder(head: HeadSettings | None = None, **changes: Any) -> BidirectionalEncoder:
    torch.manual_seed(0)
    return BidirectionalEncoder(settings(**changes), 10, head).eval()


def attention_of(**changes: Any) -> AttentionValues:
    torch.manual_seed(0)
    seen: list[AttentionValues] = []
    with watching(seen.append):
        MultiHeadAttention(settings(**changes))(X_BTD)
    return seen[0]


def test_attention_is_scaled_and_capped_as_asked() -> None:
    plain = attention_of().scores_BHTS
    torch.testing.assert_close(attention_of(attention_scale=3.0).scores_BHTS, plain * 3.0 * 8**0.5)
    torch.testing.assert_close(attention_of(attention_softcap=0.5).scores_BHTS, 0.5 * torch.tanh(plain / 0.5))


@pytest.mark.parametrize("kind", sorted(NORMS))
def test_the_epsilon_of_norms(kind: str) -> None:
    """Of values much smaller than its root, little is left."""
    norms = [part for part in encoder(norm=kind, norm_epsilon=4.0).modules() if isinstance(part, NORM_CLASSES)]
    assert len(norms) == 2
    for part in norms:
        torch.testing.assert_close(part(torch.tensor([1e-3, -1e-3] * 8)), torch.tensor([5e-4, -5e-4] * 8))


def test_segments_are_the_first_unless_told() -> None:
    model = encoder(segments=2)
    told: list[Tensor] = [model.encode(IDS_BS, segments_BS=torch.full_like(IDS_BS, number)) for number in (0, 1)]
    assert torch.equal(model.encode(IDS_BS), told[0])
    assert (told[0] - told[1]).abs().max() > 1e-3


def test_heads_read_the_first_position_or_each_one() -> None:
    states_BSD = torch.randn(3, 5, 16)
    text, tokens = (encoder(HeadSettings(kind=kind, labels=("a", "b"))) for kind in ("text", "tokens"))
    for model, alone in ((text, text.logits(states_BSD[:, :1])), (tokens, tokens.logits(states_BSD[:, :1])[:, 0])):
        logits = model.logits(states_BSD)
        torch.testing.assert_close(logits if logits.dim() == 2 else logits[:, 0], alone)
    assert text.logits(states_BSD).shape == (3, 2)
    assert tokens.logits(states_BSD).shape == (3, 5, 2)


@pytest.mark.parametrize("changes", [{}, {"attention_softcap": 2.0}, {"positions": "alibi"}], ids=str)
@pytest.mark.parametrize("length", [6, 70])
def test_attention_dropout_is_on_in_training_only(changes: dict[str, Any], length: int) -> None:
    """In every execution: few and many positions, capped scores, biases."""
    model = encoder(attention_dropout=0.5, **changes)
    ids = torch.randint(3, 10, (1, length), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.encode(ids), model.encode(ids))
    model.train()
    assert (model.encode(ids) - model.encode(ids)).abs().max() > 1e-3
