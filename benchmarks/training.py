"""Training speed in target tokens a second, beside other implementations on the same batches, in one run.

    python benchmarks/training.py --source train.en --target train.de [--model tiny|base] [--tokens 4096] [--threads 2]

Without files, 20,000 pairs of random words of caption length are made up. The peers: `torch.nn.Transformer` in a plain
loop, and Hugging Face's Marian model when `transformers` is installed. All have the same dimensions, tied embeddings,
label smoothing, Adam, float32, and read batches in the same order; they take turns, so that a change in the machine's
speed meets all. Only real target tokens are counted. Memory is measured by --only NAME, one process each.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from regard.data.batches import Batch, Batches, BatchSettings
from regard.data.binarise import binarise
from regard.data.corpus import open_pairs
from regard.data.dataset import PairDataset
from regard.data.learn import learn_tokenizers
from regard.model.positions import sinusoids
from regard.model.presets import preset
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.text.lines import write_lines
from regard.text.vocabulary import TokenizerSettings
from regard.training.loss import translation_loss
from regard.training.trainer import Trainer, TrainingSettings

MODELS = {"tiny": "tiny", "base": "paper-base"}
ROUNDS, STEPS = 4, 8
Step = Callable[[Batch], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=PEERS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        dataset, vocabulary = corpus(Path(folder), options)
        batches = Batches(dataset, BatchSettings(tokens=options.tokens))
        settings = preset(MODELS[options.model]).model
        names = [options.only] if options.only else [name for name in PEERS if available(name)]
        steps = {name: PEERS[name](settings, vocabulary, batches) for name in names}
        rates = compete(steps, batches)
        share = batches.real_share(0).both
    title = (
        f"{options.model}, vocabulary {vocabulary:,}, {options.tokens} tokens a batch ({share:.1%} real), float32, "
        f"{platform.machine()}, {options.threads} threads"
    )
    table = Table("implementation", "target tokens/s", "ratio", title=title)
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{rates[names[0]] / rate:.2f}")
    console = Console(width=110)
    console.print(table)
    if options.only:
        console.print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def compete(steps: dict[str, Step], batches: Batches) -> dict[str, float]:
    """Each implementation's tokens a second over all rounds, on the same batches, taking turns."""
    seconds = dict.fromkeys(steps, 0.0)
    tokens = 0
    stream = forever(batches)
    warm_up = list(islice(stream, 2))
    for step in steps.values():
        for batch in warm_up:
            step(batch)
    for _ in range(ROUNDS):
        chosen = list(islice(stream, STEPS))
        tokens += sum(batch.target_tokens for batch in chosen)
        for name, step in steps.items():
            begin = time.perf_counter()
            for batch in chosen:
                step(batch)
            seconds[name] += time.perf_counter() - begin
    return {name: tokens / seconds[name] for name in steps}


def forever(batches: Batches) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from batches.epoch(epoch)
        epoch += 1


def ours(settings: ModelSettings, vocabulary: int, batches: Batches) -> Step:
    model = EncoderDecoder(settings, vocabulary, vocabulary)
    trainer = Trainer(
        model, lambda model, batch: translation_loss(model, batch, 0.1), batches, TrainingSettings(), settings.d_model
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


def torch_transformer(settings: ModelSettings, vocabulary: int, batches: Batches) -> Step:
    model = PlainTransformer(settings, vocabulary)
    return plain_loop(model, model)


def hugging_face(settings: ModelSettings, vocabulary: int, batches: Batches) -> Step:
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

    return plain_loop(model, logits)


def plain_loop(model: nn.Module, logits: Callable[[Batch], torch.Tensor]) -> Step:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        targets = batch.target_out_BT.masked_fill(~batch.target_mask_BT, -100)
        functional.cross_entropy(logits(batch).flatten(0, 1), targets.flatten(), label_smoothing=0.1).backward()
        optimizer.step()

    return step


def void(_: object) -> None:
    return None


PEERS = {"regard": ours, "torch.nn.Transformer": torch_transformer, "Hugging Face Marian": hugging_face}


def available(name: str) -> bool:
    return name != "Hugging Face Marian" or importlib.util.find_spec("transformers") is not None


def corpus(folder: Path, options: argparse.Namespace) -> tuple[PairDataset, int]:
    source, target = options.source, options.target
    if source is None:
        source, target = folder / "source", folder / "target"
        generator = random.Random(1)
        words = ["".join(generator.choices("abcdefghijklmnoprstuvwz", k=generator.randint(2, 9))) for _ in range(6000)]
        weights = [1 / rank for rank in range(1, 6001)]
        for path in (source, target):
            lines = (" ".join(generator.choices(words, weights, k=generator.randint(6, 18))) for _ in range(20_000))
            write_lines(path, lines)
    tokenizers = learn_tokenizers(lambda: open_pairs(source, target), TokenizerSettings(size=options.vocabulary))
    binarise(open_pairs(source, target), tokenizers, folder / "pairs.arrow")
    return PairDataset.open(folder / "pairs.arrow", tokenizers), tokenizers.source.size


if __name__ == "__main__":
    main()
