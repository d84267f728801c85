"""What takes part in `training.py`: a function of settings, vocabulary and batches that gives a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from regard.data.batches import Batch, Batches
from regard.model.positions import sinusoids
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.training.loss import translation_loss
from regard.training.passes import Precision
from regard.training.process import settle
from regard.training.trainer import Trainer, TrainingSettings

Step = Callable[[Batch], None]


def ours(settings: ModelSettings, vocabulary: int, batches: Batches, precision: Precision) -> Step:
    settle(None)
    model = EncoderDecoder(settings, vocabulary, vocabulary)
    training = TrainingSettings(precision=precision)
    trainer = Trainer(
        model, lambda model, batch: translation_loss(model, batch, 0.1), batches, training, settings.d_model
    )
    return lambda batch: void(trainer.step([batch]))


class PlainTransformer(nn.Module):
    """`torch.nn.Transformer` with tied embeddings and sinusoids."""

    def __init__(self, settings: ModelSettings, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.d_model)
        nn.init.normal_(self.embedding.weight, std=settings.d_model**-0.5)
        self.register_buffer("positions", sinusoids(settings.max_length, settings.d_model))
        self.drop = nn.Dropout(settings.dropout)
        self.transformer = nn.Transformer(
            settings.d_model, settings.heads, settings.encoder_layers, settings.decoder_layers, settings.d_ff,
            settings.dropout, batch_first=True, norm_first=settings.norm_placement == "pre",
        )  # fmt: skip

    def forward(self, batch: Batch) -> torch.Tensor:
        source, target = self.embed(batch.source_BS), self.embed(batch.target_in_BT)
        padding = ~batch.source_mask_BS
        hidden = self.transformer(
            source, target, tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            src_key_padding_mask=padding, memory_key_padding_mask=padding, tgt_is_causal=True,
        )  # fmt: skip
        return functional.linear(hidden, self.embedding.weight)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) * self.embedding.embedding_dim**0.5
        return self.drop(x + self.positions[: ids.shape[1]])


def torch_transformer(settings: ModelSettings, vocabulary: int, batches: Batches, precision: Precision) -> Step:
    model = PlainTransformer(settings, vocabulary)
    return plain_loop(model, model, precision)


def hugging_face(settings: ModelSettings, vocabulary: int, batches: Batches, precision: Precision) -> Step:
    from transformers import MarianConfig, MarianMTModel

    model = MarianMTModel(
        MarianConfig(
            vocab_size=vocabulary, d_model=settings.d_model, encoder_layers=settings.encoder_layers,
            decoder_layers=settings.decoder_layers, encoder_attention_heads=settings.heads,
            decoder_attention_heads=settings.heads, encoder_ffn_dim=settings.d_ff, decoder_ffn_dim=settings.d_ff,
            dropout=settings.dropout, activation_function="relu", scale_embedding=True, pad_token_id=0,
            decoder_start_token_id=1, eos_token_id=2, forced_eos_token_id=2,
        )
    )  # fmt: skip

    def logits(batch: Batch) -> torch.Tensor:
        return model(
            input_ids=batch.source_BS, attention_mask=batch.source_mask_BS.long(),
            decoder_input_ids=batch.target_in_BT, use_cache=False,
        ).logits  # fmt: skip

    return plain_loop(model, logits, precision)


def plain_loop(model: nn.Module, logits: Callable[[Batch], torch.Tensor], precision: Precision) -> Step:
    """As in any introduction; in half precision under torch's autocast."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        targets = batch.target_out_BT.masked_fill(~batch.target_mask_BT, -100)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            loss = functional.cross_entropy(logits(batch).flatten(0, 1), targets.flatten(), label_smoothing=0.1)
        loss.backward()
        optimizer.step()

    return step


def void(_: object) -> None:
    return None


def products(settings: ModelSettings, vocabulary: int, batches: Batches, precision: Precision) -> Step:
    """The matrix products of a step and nothing else, each core by itself with half of the positions."""
    from concurrent.futures import ThreadPoolExecutor

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    dtype = getattr(torch, precision)
    d, f = settings.d_model, settings.d_ff
    weights = {
        shape: torch.randn(shape).to(dtype)
        for shape in ((3 * d, d), (d, d), (2 * d, d), (f, d), (d, f), (vocabulary, d))
    }
    encoder = [(3 * d, d), (d, d), (f, d), (d, f)] * settings.encoder_layers
    decoder = [(3 * d, d), (d, d), (d, d), (d, d), (f, d), (d, f)] * settings.decoder_layers

    def product(shape: tuple[int, int], x: torch.Tensor) -> None:
        """Forward, and backward to the input and to the weight."""
        y = x @ weights[shape].T
        torch.mm(y, weights[shape])
        torch.mm(y.T, x)

    def part(source: int, target: int, scored: int) -> None:
        for shapes, positions in (
            (encoder, source),
            (decoder, target),
            ([(2 * d, d)] * settings.decoder_layers, source),
        ):
            inputs = {width: torch.randn(positions, width).to(dtype) for width in (d, f)}
            for shape in shapes:
                product(shape, inputs[shape[1]])
        hidden = torch.randn(scored, d).to(dtype)
        for start in range(0, scored, 512):
            product((vocabulary, d), hidden[start : start + 512])

    def step(batch: Batch) -> None:
        sizes = batch.source_BS.numel(), batch.target_in_BT.numel(), batch.target_tokens
        list(pool.map(lambda _: part(*(size // threads for size in sizes)), range(threads)))

    return step


PEERS = {
    "regard": ours,
    "torch.nn.Transformer": torch_transformer,
    "Hugging Face Marian": hugging_face,
    "limit": products,
}
