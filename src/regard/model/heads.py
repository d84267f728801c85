"""What stands on an encoder to answer a question: a table of heads.

Shapes: B batch, S positions, N positions asked for, D d_model, V vocabulary, L labels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.model.dropout import dropout
from regard.model.inputs import embedding_matrix
from regard.model.linear import linear
from regard.model.norms import norm
from regard.model.precision import finite
from regard.model.settings import HeadSettings, ModelSettings


class MaskedLanguageHead(nn.Module):
    """The token behind a mask: a dense layer, GELU, normalisation, and the token vectors as output matrix.

    BERT: Devlin et al. 2019, arXiv 1810.04805, section 3.1.
    """

    def __init__(self, settings: ModelSettings, head: HeadSettings, embedding_VD: nn.Parameter | None) -> None:
        super().__init__()
        if embedding_VD is None:
            raise ValueError("a masked language model reads tokens")
        self.dense = linear(settings.d_model, settings.d_model)
        self.norm = norm(settings)
        self.bias = nn.Parameter(torch.zeros(len(embedding_VD)))
        self.output = embedding_VD if settings.ties_output else embedding_matrix(*embedding_VD.shape)

    def predict(self, states_ND: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """What the output matrix is multiplied with."""
        predicted: Tensor = self.norm(functional.gelu(finite(self.dense(states_ND))))
        return predicted

    def forward(self, states_BSD: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        return functional.linear(self.predict(states_BSD), self.output, self.bias)


class TextHead(nn.Module):
    """A label for the whole input, read at its first position."""

    def __init__(self, settings: ModelSettings, head: HeadSettings, embedding_VD: nn.Parameter | None) -> None:
        super().__init__()
        self.dense = linear(settings.d_model, settings.d_model) if head.pooler else None
        self.output = linear(settings.d_model, len(head.labels))
        self.drop = settings.dropout

    def forward(self, states_BSD: Float[Tensor, "B S D"]) -> Float[Tensor, "B L"]:
        x_BD = states_BSD[:, 0]
        if self.dense is not None:
            x_BD = self.dense(dropout(x_BD, self.drop, self.training)).tanh()
        logits_BL: Tensor = self.output(dropout(x_BD, self.drop, self.training))
        return logits_BL


class TokenHead(nn.Module):
    """A label for each position."""

    def __init__(self, settings: ModelSettings, head: HeadSettings, embedding_VD: nn.Parameter | None) -> None:
        super().__init__()
        self.output = linear(settings.d_model, len(head.labels))
        self.drop = settings.dropout

    def forward(self, states_BSD: Float[Tensor, "B S D"]) -> Float[Tensor, "B S L"]:
        logits_BSL: Tensor = self.output(dropout(states_BSD, self.drop, self.training))
        return logits_BSL


HEADS: dict[str, type[MaskedLanguageHead] | type[TextHead] | type[TokenHead]] = {
    "masked-lm": MaskedLanguageHead,
    "text": TextHead,
    "tokens": TokenHead,
}
