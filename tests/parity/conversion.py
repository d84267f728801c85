"""What the tests of conversion share: small random models of `transformers`, and how ours are compared with them.

Shapes: B batch, S source positions, T target positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.convert import huggingface
from regard.search.beam import beam_search
from regard.search.decoder import CachedDecoder
from regard.search.processors import Ban
from regard.search.settings import SearchSettings

transformers.logging.set_verbosity_error()


@dataclass(frozen=True)
class Case:
    """A small random model of `transformers`."""

    name: str
    kind: str
    """Its class."""
    config: Callable[[], Any]
    prepare: Callable[[Any], None] = lambda model: None
    """What is done to the model before it is stored."""
    changed: frozenset[str] = frozenset()
    """Weights that do not come back bit for bit when they are read and written, for a reason."""
    noise: float = 0.1


class Conversion:
    """A foreign model, ours made of its file, and theirs made of what we write of ours."""

    def __init__(self, case: Case, directory: Path) -> None:
        self.case = case
        self.foreign = foreign(case)
        self.stored, self.written = directory / "foreign", directory / "written"
        self.foreign.save_pretrained(self.stored)
        self.own, self.architecture, self.plan = huggingface.read(self.stored)
        huggingface.write(self.written, self.own, self.plan.ids, name=self.architecture.name)
        self.back = reload(case.kind, self.written)

    @property
    def changed(self) -> set[str]:
        """Names of weights that are not the same in both files, bit for bit."""
        left, right = tensors(self.stored), tensors(self.written)
        same = {name for name in left.keys() & right.keys() if torch.equal(left[name], right[name])}
        return (left.keys() | right.keys()) - same


def foreign(case: Case, seed: int = 1) -> nn.Module:
    """The model, every weight random, biases and normalisations too: zeros and ones would hide mistakes."""
    torch.manual_seed(seed)
    model = getattr(transformers, case.kind)(case.config()).eval()
    with torch.no_grad():
        for tensor in [each for each in model.parameters() if each.requires_grad]:
            tensor.add_(torch.randn_like(tensor) * case.noise)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
        case.prepare(model)
    return model


def reload(kind: str, directory: Path) -> nn.Module:
    """What `transformers` makes of a directory of ours; nothing may be missing and nothing left over."""
    model, report = getattr(transformers, kind).from_pretrained(directory, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not report[what], (what, report[what])
    return model.eval()


def tensors(directory: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in directory.glob("*.safetensors"):
        found |= load_file(path)
    return found


@dataclass(frozen=True)
class Pairs:
    """A padded batch for an encoder-decoder."""

    source: Tensor
    keys_BS: Tensor | None
    target_BT: Tensor
    start: int
    eos: int
    pad: int


def pairs(model: Any, lengths: Sequence[int] = (7, 3, 5), target: int = 6) -> Pairs:
    """Sources of these lengths (of one length, if it reads sound), each with a target of random tokens."""
    config, rows = model.config, len(lengths)
    generator = torch.Generator().manual_seed(2)
    eos, pad = config.eos_token_id, config.pad_token_id
    start = eos if config.decoder_start_token_id is None else config.decoder_start_token_id

    def words(size: int, length: int) -> Tensor:
        allowed = torch.tensor([word for word in range(size) if word not in (eos, pad, start)])
        return allowed[torch.randint(len(allowed), (rows, length), generator=generator)]

    target_BT = words(min(config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size), target)
    target_BT[:, 0] = start
    if hasattr(config, "num_mel_bins"):
        frames = torch.randn(rows, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)
        return Pairs(frames, None, target_BT, start, eos, pad)
    keys_BS = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids_BS = words(config.vocab_size, max(lengths)).masked_fill(~keys_BS, pad)
    return Pairs(ids_BS, keys_BS, target_BT, start, eos, pad)


def foreign_logits(model: Any, batch: Pairs) -> Tensor:
    with torch.inference_mode():
        if batch.keys_BS is None:
            return model(input_features=batch.source, decoder_input_ids=batch.target_BT).logits
        return model(
            input_ids=batch.source, attention_mask=batch.keys_BS.long(), decoder_input_ids=batch.target_BT
        ).logits


def own_logits(model: Any, batch: Pairs, chunks: Sequence[int] | None = None) -> Tensor:
    """Our logits; with `chunks`, in pieces of these lengths, through the cache."""
    with torch.inference_mode():
        memory = model.encode(batch.source, batch.keys_BS)
        if chunks is None:
            return model.logits(model.decode(batch.target_BT, memory))
        cache = model.new_cache()
        pieces = batch.target_BT.split(list(chunks), dim=1)
        return torch.cat([model.logits(model.decode(piece, memory, cache)) for piece in pieces], dim=1)


def banned(batch: Pairs, end: bool) -> list[int]:
    """What a search may not let out; without `end`, that is the end token too, whatever else it is used for."""
    steering = {batch.pad, batch.start, batch.eos}
    return sorted(steering - {batch.eos} if end else steering)


def foreign_output(model: Any, batch: Pairs, beam: int, tokens: int, end: bool) -> list[list[int]]:
    """What `generate` finds, without the first token and what follows the end.

    Length is not rewarded (length_penalty 0): theirs divides by a power of the length, ours as the paper does.
    A beam of theirs stays as wide when hypotheses end, while ours gives their places up: they need not find the same
    where ends come early.
    """
    settings = transformers.GenerationConfig(
        num_beams=beam,
        max_new_tokens=tokens,
        do_sample=False,
        length_penalty=0.0,
        early_stopping="never" if beam > 1 else False,
        decoder_start_token_id=batch.start,
        pad_token_id=batch.pad,
        eos_token_id=batch.eos,
        suppress_tokens=banned(batch, end),
    )
    model.generation_config = transformers.GenerationConfig()
    with torch.inference_mode():
        inputs = (
            {"input_features": batch.source}
            if batch.keys_BS is None
            else {"input_ids": batch.source, "attention_mask": batch.keys_BS.long()}
        )
        # Whisper's own `generate` is about long recordings.
        rows = transformers.GenerationMixin.generate(model, **inputs, generation_config=settings).tolist()
    found = []
    for row in rows:
        words = row[1:]
        found.append(words[: words.index(batch.eos)] if batch.eos in words else words)
    return found


def own_output(model: Any, batch: Pairs, beam: int, tokens: int, end: bool) -> list[list[int]]:
    found = beam_search(
        CachedDecoder(model, batch.source, batch.keys_BS),
        [tokens] * len(batch.source),
        SearchSettings(beam=beam, alpha=0.0),
        begin=batch.start,
        end=batch.eos,
        processors=[Ban(banned(batch, end))],
    )
    return [list(hypotheses[0].ids) for hypotheses in found]
