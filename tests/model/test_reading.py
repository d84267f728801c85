"""What reading a model leaves out: random numbers that nobody will see, and torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from regard.model import store
from regard.model.settings import ModelSettings

SMALL = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "max_length": 20}
PATCHES = {"input": "patches", "patches": {"height": 4, "width": 4, "size": 2, "channels": 1}}
SEEN = {"family": "encoder", "vocabulary": {}, "head": {"kind": "text", "labels": ["a", "b"]}}
HEARD = {"family": "encoder-decoder", "vocabulary": {"target": 9}}
KINDS: dict[str, dict[str, Any]] = {
    **{
        scheme: {"vocabulary": {"source": 9, "target": 9}, "model": SMALL | {"positions": scheme}}
        for scheme in get_args(ModelSettings.model_fields["positions"].annotation)
    },
    "patches": SEEN | {"model": SMALL | PATCHES | {"tie": "none", "positions": "learned"}},
    "frames": HEARD | {"model": SMALL | {"input": "frames", "tie": "decoder"}},
}


def config(values: dict[str, Any]) -> store.ModelConfig:
    return store.ModelConfig.parse(values, "test")


@pytest.mark.parametrize("kind", KINDS)
def test_to_read_a_model_draws_no_random_numbers(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(3)
    before = store.build(config(KINDS[kind])).eval()
    store.write(tmp_path, before)
    state = torch.get_rng_state()
    after = store.read(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert before.state_dict().keys() == after.state_dict().keys()
    for name, tensor in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], tensor), name
    for name, table in before.named_buffers():
        assert torch.equal(after.get_buffer(name), table), name


def test_new_models_are_drawn_all_the_same() -> None:
    torch.manual_seed(3)
    first, second = (store.build(config(KINDS["learned"])) for _ in range(2))
    for name, weight in store.parameters(first).items():
        constant = bool((weight == weight.flatten()[0]).all())
        assert constant or not torch.equal(weight, store.parameters(second)[name]), name
    drawn = store.parameters(first)
    assert all(drawn[name].std() > 0 for name in drawn if name.endswith("weight") and drawn[name].dim() > 1)


def test_a_model_without_memory_is_made_without_torchs_compiler() -> None:
    code = (
        "import sys\nfrom regard.model import store\n"
        f"for kind in {list(KINDS.values())!r}:\n"
        "    model = store.blueprint(store.ModelConfig.parse(kind, 'test'))\n"
        "    assert all(weight.is_meta for weight in model.parameters())\n"
        "print(*{'torch._dynamo', 'torch._inductor', 'sympy'} & sys.modules.keys())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
