"""The Transformer, assembled (section 3, Figure 1), and its two descendants: the encoder and the decoder alone.

Shapes: B batch (sources), R rows of a search (R = B in training), S source positions, T target positions, D d_model,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.model.attention import MultiHeadAttention
from regard.model.blocks import DecoderLayer, EncoderLayer
from regard.model.cache import Bound, Cache, StaticCache
from regard.model.heads import HEADS, MaskedLanguageHead
from regard.model.inputs import INPUTS, Embedding, Reader, embedding_matrix
from regard.model.masks import Mask, padding, self_attention_mask
from regard.model.norms import final_norm
from regard.model.places import Places, places, run
from regard.model.positions import Positions, Relation
from regard.model.settings import HeadSettings, ModelSettings


@dataclass(frozen=True, eq=False)
class Memory:
    """What the encoder hands to the decoder: its output, and which of its positions are real."""

    states_BSD: Float[Tensor, "B S D"]
    mask: Mask | None

    def select(self, rows: Int[Tensor, " M"]) -> Memory:
        """The memory of some of the sources only."""
        mask = None if self.mask is None else self.mask.select(rows)
        return Memory(self.states_BSD.index_select(0, rows), mask)


class Output(nn.Module):
    """Logits from hidden states: the pre-softmax linear transformation (section 3.4), its matrix shared or not."""

    settings: ModelSettings
    output: nn.Parameter
    output_bias: nn.Parameter | None

    def make_output(self, vocabulary: int, embedding_VD: nn.Parameter) -> None:
        """The matrix: that of the embedding, or its own."""
        tied = self.settings.ties_output
        self.output = embedding_VD if tied else embedding_matrix(vocabulary, self.settings.d_model)
        self.output_bias = nn.Parameter(torch.zeros(vocabulary)) if self.settings.output_bias else None

    def logits(self, hidden_RTD: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """The scores of every token."""
        logits = functional.linear(hidden_RTD, self.output, self.output_bias)
        cap = self.settings.output_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


class EncoderDecoder(Output):
    """The paper's model: an encoder over the source, a causal decoder over the target that attends to it."""

    family = "encoder-decoder"

    def __init__(self, settings: ModelSettings, source_vocabulary: int | None, target_vocabulary: int) -> None:
        """`source_vocabulary` is None where the source is not of tokens."""
        super().__init__()
        self.settings = settings
        if settings.ties_inputs and source_vocabulary != target_vocabulary:
            raise ValueError(f'tie = "{settings.tie}" needs one vocabulary for both sides')
        target_VD = embedding_matrix(target_vocabulary, settings.d_model)
        shared_VD = target_VD if settings.ties_inputs else None
        self.source_embedding = encoder_input(settings, source_vocabulary, shared_VD, settings.source_max_length)
        self.target_embedding = Embedding(settings, target_VD, causal=True)
        if settings.tie == "inputs":
            self.embedding = target_VD  # by a name that no other tying has, so that files are not taken for another
        self.make_output(target_vocabulary, target_VD)
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.decoder_layers))
        self.encoder_norm = final_norm(settings)
        self.decoder_norm = final_norm(settings)

    def encode(self, source_BS: Tensor, keys_BS: Bool[Tensor, "B S"] | None = None) -> Memory:
        """Read the source, ids [B, S] or what else the model reads; `keys_BS` is True at real tokens."""
        x_BSD = run_encoder(self.settings, self.source_embedding, self.encoder, source_BS, keys_BS)
        return Memory(self.encoder_norm(x_BSD), None if keys_BS is None else padding(keys_BS))

    def decode(
        self, target_RT: Int[Tensor, "R T"], memory: Memory, cache: Cache | StaticCache | None = None
    ) -> Float[Tensor, "R T D"]:
        """Hidden states of target positions: a whole sequence, or the chunk or step that follows what `cache` holds.

        Padding may only stand at the end of a row: causality keeps it from the real positions.
        """
        if cache is not None:
            queries, keys = cache.extend(_shape(target_RT), device=target_RT.device)
        else:
            queries = keys = run(0, target_RT.shape[1], target_RT.device)
        masks = stack_masks(self.settings, queries, keys, len(self.decoder), causal=True)
        relations = stack_relations(self.settings, self.target_embedding.positions, queries, keys, len(self.decoder))
        x_RTD = self.target_embedding(target_RT, queries)
        for index, layer in enumerate(self.decoder):
            layer_cache = cache.layers[index] if cache is not None else None
            x_RTD = layer(x_RTD, masks[index], memory.states_BSD, memory.mask, relations[index], layer_cache)
        hidden_RTD: Tensor = self.decoder_norm(x_RTD)
        return hidden_RTD

    def forward(
        self, source_BS: Tensor, keys_BS: Bool[Tensor, "B S"] | None, target_BT: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """Hidden states of a whole target (beginning with the begin token), each position seeing those up to itself."""
        return self.decode(target_BT, self.encode(source_BS, keys_BS))

    def new_cache(self) -> Cache:
        return Cache(len(self.decoder))

    def memory_attention(self, layer: int) -> MultiHeadAttention:
        """The attention of a layer of the decoder over the encoder's output."""
        attention = self.decoder.get_submodule(f"{layer}.memory_attention")
        assert isinstance(attention, MultiHeadAttention)
        return attention


class CausalDecoder(Output):
    """A decoder without an encoder: a language model (GPT: Radford et al. 2018; LLaMA: Touvron et al. 2023)."""

    family = "causal-decoder"

    def __init__(self, settings: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        self.settings = settings
        weight_VD = embedding_matrix(vocabulary, settings.d_model)
        self.embedding = Embedding(settings, weight_VD, causal=True)
        self.make_output(vocabulary, weight_VD)
        self.decoder = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.decoder_layers))
        self.decoder_norm = final_norm(settings)

    def decode(
        self,
        tokens_BT: Int[Tensor, "B T"],
        real_BT: Bool[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
        *,
        documents_BT: Int[Tensor, "B T"] | None = None,
        prefix_BT: Bool[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Hidden states of a whole sequence, or of the chunk or step that follows what `cache` holds.

        Args:
            real_BT: False at padding, on either side; positions count real tokens only.
            documents_BT: the text that each token belongs to, where rows are packed: nothing is seen of another one,
                and positions begin anew. Not with a cache.
            prefix_BT: tokens that all of their row (and document) see, also from before them: with a cache, of the
                first chunk only.

        Raises:
            ValueError: more positions than the model has, packed rows with a cache, or a prefix that a cache cannot
                hold.
        """
        if cache is not None and documents_BT is not None:
            raise ValueError("packed rows are decoded whole: leave out the cache")
        if cache is not None and prefix_BT is not None and (cache.length or cache.bound is not None):
            raise ValueError("a prefix is seen from before it too: it comes first, into a cache without a bound")
        if cache is not None and cache.bound is not None:
            pieces = self._decode_bounded(tokens_BT, real_BT, cache, cache.bound)
            return torch.cat(pieces, dim=1)
        if cache is not None:
            queries, keys = cache.extend(_shape(tokens_BT), real_BT, prefix_BT, tokens_BT.device)
        else:
            queries = keys = places(_shape(tokens_BT), real_BT, documents_BT, prefix_BT, tokens_BT.device)
        return self._decode(tokens_BT, queries, keys, cache)

    def _decode(self, tokens_BT: Tensor, queries: Places, keys: Places, cache: Cache | None) -> Tensor:
        masks = stack_masks(self.settings, queries, keys, len(self.decoder), causal=True)
        relations = stack_relations(self.settings, self.embedding.positions, queries, keys, len(self.decoder))
        x_BTD = self.embedding(tokens_BT, queries)
        for index, layer in enumerate(self.decoder):
            layer_cache = cache.layers[index] if cache is not None else None
            x_BTD = layer(x_BTD, masks[index], relations[index], layer_cache)
        hidden_BTD: Tensor = self.decoder_norm(x_BTD)
        return hidden_BTD

    def _decode_bounded(self, tokens_BT: Tensor, real_BT: Tensor | None, cache: Cache, bound: Bound) -> list[Tensor]:
        """What fits goes at once; beyond, each token pushes one out, so that chunks and steps give the same."""
        pieces, start = [], 0
        while start < tokens_BT.shape[1]:
            stop = start + max(1, bound.size - cache.length)
            part = tokens_BT[:, start:stop]
            real = None if real_BT is None else real_BT[:, start:stop]
            cache.forget(cache.length + part.shape[1] - bound.size)
            queries, keys = cache.extend(_shape(part), real, None, part.device)
            pieces.append(self._decode(part, queries, keys, cache))
            start = stop
        return pieces

    def forward(
        self, tokens_BT: Int[Tensor, "B T"], documents_BT: Int[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Hidden states of whole rows, each position seeing those up to itself, of its own document."""
        return self.decode(tokens_BT, documents_BT=documents_BT)

    def new_cache(self, bound: Bound | None = None) -> Cache:
        return Cache(len(self.decoder), bound)


class BidirectionalEncoder(nn.Module):
    """An encoder without a decoder, with a head for a question (BERT: Devlin et al. 2019, arXiv 1810.04805)."""

    family = "encoder"

    def __init__(self, settings: ModelSettings, vocabulary: int | None, head: HeadSettings | None = None) -> None:
        """`vocabulary` is None where the input is not of tokens; without `head` it gives states only."""
        super().__init__()
        self.settings = settings
        self.embedding = encoder_input(settings, vocabulary)
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.encoder_layers))
        self.encoder_norm = final_norm(settings)
        self.head_settings = head
        weight_VD = self.embedding.weight if isinstance(self.embedding, Embedding) else None
        self.head = None if head is None else HEADS[head.kind](settings, head, weight_VD)

    def encode(
        self,
        input_BS: Tensor,
        real_BS: Bool[Tensor, "B S"] | None = None,
        *,
        documents_BS: Int[Tensor, "B S"] | None = None,
        segments_BS: Int[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B S D"]:
        """States of all positions of ids [B, S], or of what else the model reads.

        `real_BS`, `documents_BS` as for `CausalDecoder.decode`; `segments_BS`: the part that each token belongs to.
        """
        more = () if segments_BS is None else (segments_BS,)
        x_BSD = run_encoder(self.settings, self.embedding, self.encoder, input_BS, real_BS, documents_BS, *more)
        states_BSD: Tensor = self.encoder_norm(x_BSD)
        return states_BSD

    def logits(self, states_BSD: Float[Tensor, "*rows D"]) -> Float[Tensor, "*out K"]:
        """The head's answer: of tokens [..., V], of the whole [B, L] or of each position [B, S, L]."""
        if self.head is None:
            raise ValueError("this encoder has no head: it gives states only")
        logits: Tensor = self.head(states_BSD)
        return logits

    def predict(self, states_ND: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """Hidden states that `output` turns into logits of tokens (masked language models)."""
        return self._masked_head.predict(states_ND)

    @property
    def output(self) -> nn.Parameter:
        """The output matrix [V, D] of a masked language model."""
        return self._masked_head.output

    @property
    def output_bias(self) -> nn.Parameter:
        """The bias [V] beside it."""
        return self._masked_head.bias

    @property
    def _masked_head(self) -> MaskedLanguageHead:
        if not isinstance(self.head, MaskedLanguageHead):
            raise ValueError("this encoder is no masked language model")
        return self.head

    def forward(self, input_BS: Tensor, real_BS: Bool[Tensor, "B S"] | None = None) -> Float[Tensor, "B S D"]:
        return self.encode(input_BS, real_BS)


Model = EncoderDecoder | CausalDecoder | BidirectionalEncoder


def encoder_input(
    settings: ModelSettings,
    vocabulary: int | None,
    weight_VD: nn.Parameter | None = None,
    length: int | None = None,
) -> Reader:
    """What an encoder reads: tokens, with the given matrix or one of its own, or something else."""
    if settings.input != "tokens":
        return INPUTS[settings.input](settings, length=length)
    if weight_VD is None:
        if vocabulary is None:
            raise ValueError("a model that reads tokens needs a vocabulary")
        weight_VD = embedding_matrix(vocabulary, settings.d_model)
    return Embedding(settings, weight_VD, length=length)


def run_encoder(
    settings: ModelSettings,
    reader: Reader,
    layers: nn.ModuleList,
    input_BS: Tensor,
    real_BS: Tensor | None,
    documents_BS: Tensor | None = None,
    *more: Tensor,
) -> Tensor:
    """The input and the layers of an encoder, one after the other; `more` goes to the input."""
    shape = len(input_BS), reader.count(input_BS)
    where = places(shape, real_BS, documents_BS, None, input_BS.device)
    masks = stack_masks(settings, where, where, len(layers), causal=False)
    relations = stack_relations(settings, reader.positions, where, where, len(layers))
    x_BSD: Tensor = reader(input_BS, where, *more)
    for layer, mask, relation in zip(layers, masks, relations, strict=True):
        x_BSD = layer(x_BSD, mask, relation)
    return x_BSD


def stack_masks(
    settings: ModelSettings, queries: Places, keys: Places, layers: int, *, causal: bool
) -> Sequence[Mask | None]:
    """The mask of each layer: one object for all layers of like span."""
    by_span = {
        span: self_attention_mask(queries, keys, settings, span, causal=causal)
        for span in dict.fromkeys(settings.spans)
    }
    return [by_span[settings.span(layer)] for layer in range(layers)]


def stack_relations(
    settings: ModelSettings, scheme: Positions, queries: Places, keys: Places, layers: int
) -> Sequence[Relation | None]:
    """What positions do in the attention of each layer: one object for all layers of like scheme."""
    schemes = [scheme.of(settings.span(layer)) for layer in range(layers)]
    by_scheme = {each: each.relate(queries, keys) for each in dict.fromkeys(schemes)}
    return [by_scheme[each] for each in schemes]


def _shape(tokens_BT: Tensor) -> tuple[int, int]:
    rows, count = tokens_BT.shape
    return rows, count
