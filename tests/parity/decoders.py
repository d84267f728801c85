"""What the tests of converted decoders share: small configurations, padded batches, logits.

Shapes: B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from parity.conversion import Case
from regard.model.transformer import CausalDecoder

PAD, BEGIN, END, WORDS = 0, 1, 2, 3
VOCABULARY = 31


def gpt2(**more: Any) -> Case:
    size: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 40}
    return Case("gpt2", "GPT2LMHeadModel", lambda: transformers.GPT2Config(**ids(), **(size | more)))


def relative(name: str, **more: Any) -> Case:
    size = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "max_position_embeddings": 40,
    }
    kind = {"gemma3_text": "Gemma3"}.get(name, name.capitalize())
    settings = getattr(transformers, f"{kind}TextConfig" if name == "gemma3_text" else f"{kind}Config")
    model = f"{kind}ForCausalLM"
    return Case(name, model, lambda: settings(**ids(), **(size | more)))


def ids() -> dict[str, int]:
    return {"pad_token_id": PAD, "bos_token_id": BEGIN, "eos_token_id": END}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 50.0, "factor": 4.0, **more}}


def batch(side: str, lengths: Sequence[int] = (11, 4, 8)) -> tuple[Tensor, Tensor]:
    """Tokens, and which of them are real."""
    generator = torch.Generator().manual_seed(3)
    longest = max(lengths)
    tokens_BT = torch.randint(WORDS, VOCABULARY, (len(lengths), longest), generator=generator)
    real_BT = torch.arange(longest) < torch.tensor(lengths)[:, None]
    real_BT = real_BT.flip(1) if side == "left" else real_BT
    return tokens_BT.masked_fill(~real_BT, PAD), real_BT


def their_logits(model: Any, tokens_BT: Tensor, real_BT: Tensor) -> Tensor:
    positions_BT = (real_BT.cumsum(dim=1) - 1).clamp(min=0)
    with torch.inference_mode():
        return model(input_ids=tokens_BT, attention_mask=real_BT.long(), position_ids=positions_BT).logits


def our_logits(model: CausalDecoder, tokens_BT: Tensor, real_BT: Tensor, pieces: Sequence[int] | None = None) -> Tensor:
    """With `pieces`, through the cache in chunks of these lengths."""
    with torch.inference_mode():
        if pieces is None:
            return model.logits(model.decode(tokens_BT, real_BT))
        cache = model.new_cache()
        chunks = zip(tokens_BT.split(list(pieces), dim=1), real_BT.split(list(pieces), dim=1), strict=True)
        return torch.cat([model.logits(model.decode(tokens, real, cache)) for tokens, real in chunks], dim=1)


def distance(left: Tensor, right: Tensor, real_BT: Tensor) -> float:
    """The largest difference at real positions, which have to be numbers."""
    assert left[real_BT].isfinite().all()
    return float((left[real_BT] - right[real_BT]).abs().max())


def edited(stored: Path, directory: Path, **values: Any) -> Path:
    """A copy of a stored model with other values in its configuration."""
    config = json.loads((stored / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps(config | values), encoding="utf-8")
    (directory / "model.safetensors").write_bytes((stored / "model.safetensors").read_bytes())
    return directory
