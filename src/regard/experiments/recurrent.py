"""An LSTM encoder-decoder with attention: what translated best before attention was all one needed.

Bidirectional encoder and the decoder's first state: Bahdanau et al. 2014 (arXiv 1409.0473, A.1 and A.2), with LSTMs for
gated units. Attention ("general" scores), attentional states and input feeding: Luong et al. 2015 (arXiv 1508.04025,
sections 3.1 and 3.3).

Shapes: B batch (sources), R rows of a search, S source positions, T target positions, D d_model, N hidden units,
F = 2 L N + D values of a decoder's state, where L is its number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.experiments.reference import AttentionMemory, History, ReferenceModel, ReferenceSettings
from regard.model.masks import padding


class RecurrentSettings(ReferenceSettings):
    """An LSTM encoder-decoder."""


@dataclass(frozen=True, eq=False)
class State:
    """The decoder after one target position."""

    hidden: tuple[Tensor, ...]
    """h of each layer, [R, N]."""
    cells: tuple[Tensor, ...]
    """c of each layer, [R, N]."""
    attentional_RD: Tensor
    """Luong's h~: what the token is predicted from, and what is fed into the next position."""

    def packed(self) -> Float[Tensor, "R F"]:
        """All of it side by side: what the cache holds of a position."""
        return torch.cat((*self.hidden, *self.cells, self.attentional_RD), dim=-1)


class RecurrentEncoderDecoder(ReferenceModel):
    """A bidirectional LSTM reads the source; an LSTM that looks back at it says the target."""

    def __init__(self, settings: RecurrentSettings, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__(settings, source_vocabulary, target_vocabulary)
        self.settings = settings
        d_model, hidden, layers = settings.d_model, settings.hidden, settings.decoder_layers
        self.encoder = nn.LSTM(
            d_model,
            hidden,
            settings.encoder_layers,
            batch_first=True,
            bidirectional=True,
            dropout=settings.dropout if settings.encoder_layers > 1 else 0.0,
        )
        self.first_state = nn.Linear(hidden, 2 * layers * hidden)
        self.key_projection = nn.Linear(2 * hidden, hidden, bias=False)
        inputs = [2 * d_model, *[hidden] * (layers - 1)]
        self.decoder = nn.ModuleList(nn.LSTMCell(width, hidden) for width in inputs)
        self.out_projection = nn.Linear(3 * hidden, d_model, bias=False)
        remember_at_first(self)

    def read(self, source_BS: Int[Tensor, "B S"], keys_BS: Bool[Tensor, "B S"]) -> AttentionMemory:
        if bool((keys_BS[:, 1:] & ~keys_BS[:, :-1]).any()):
            raise ValueError("an LSTM reads a source in order: its padding may only stand at the end")
        # An empty source, which packing refuses, is read as one token, and then hidden like all padding.
        lengths_B = keys_BS.sum(dim=1).clamp(min=1).cpu()
        embedded_BSD = self.dropped(functional.embedding(source_BS, self.source_embedding))
        packed = pack_padded_sequence(embedded_BSD, lengths_B, batch_first=True, enforce_sorted=False)
        states, _ = self.encoder(packed)
        states_BSF, _ = pad_packed_sequence(states, batch_first=True, total_length=source_BS.shape[1])
        states_BSF = states_BSF.masked_fill(~keys_BS[:, :, None], 0.0)
        return AttentionMemory(self.key_projection(states_BSF), states_BSF, padding(keys_BS))

    def decode(
        self, target_RT: Int[Tensor, "R T"], memory: AttentionMemory, cache: History | None = None
    ) -> Float[Tensor, "R T D"]:
        before_RF = None if cache is None else cache.last(0)
        state = self._unpacked(self._begin(memory, len(target_RT)) if before_RF is None else before_RF)
        states = []
        embedded_RTD = self.dropped(functional.embedding(target_RT, self.target_embedding))
        for embedded_RD in embedded_RTD.unbind(dim=1):
            state = self._step(embedded_RD, state, memory)
            states.append(state)
        if cache is not None:
            cache.append(0, torch.stack([each.packed() for each in states], dim=1))
        return self.dropped(torch.stack([each.attentional_RD for each in states], dim=1))

    def new_cache(self) -> History:
        return History(layers=1)

    def _begin(self, memory: AttentionMemory, rows: int) -> Float[Tensor, "R F"]:
        """tanh(W h), where h is the encoder's backward state at the first token, for every h and c; h~ is zero."""
        backward_BN = memory.values_BSF[:, 0, self.settings.hidden :]
        state_BF = self.first_state(backward_BN).tanh()
        attentional_BD = state_BF.new_zeros(len(state_BF), self.settings.d_model)
        return torch.cat((state_BF, attentional_BD), dim=-1).repeat_interleave(rows // len(state_BF), dim=0)

    def _unpacked(self, packed_RF: Float[Tensor, "R F"]) -> State:
        layers = self.settings.decoder_layers
        parts = torch.split(packed_RF, [*[self.settings.hidden] * (2 * layers), self.settings.d_model], dim=-1)
        return State(parts[:layers], parts[layers:-1], parts[-1])

    def _step(self, embedded_RD: Float[Tensor, "R D"], before: State, memory: AttentionMemory) -> State:
        """One target position: through the LSTMs, then a look at the source."""
        x = torch.cat((embedded_RD, before.attentional_RD), dim=-1)
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        for layer, cell in enumerate(self.decoder):
            x, c_RN = cell(self.dropped(x) if layer else x, (before.hidden[layer], before.cells[layer]))
            hidden.append(x)
            cells.append(c_RN)
        context_RF = memory.attend(x[:, None])[:, 0]
        attentional_RD = self.out_projection(torch.cat((context_RF, x), dim=-1)).tanh()
        return State(tuple(hidden), tuple(cells), attentional_RD)


def remember_at_first(model: nn.Module) -> None:
    """Begin with open forget gates: their bias is 1, all others of the LSTMs are 0 (Gers et al. 2000)."""
    with torch.no_grad():
        for module in model.modules():
            if not isinstance(module, (nn.LSTM, nn.LSTMCell)):
                continue
            for name, parameter in module.named_parameters():
                if name.startswith("bias"):
                    parameter.zero_()
                if name.startswith("bias_ih"):
                    parameter[module.hidden_size : 2 * module.hidden_size] = 1.0
