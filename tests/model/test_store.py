"""A model directory: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.model import store
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder

DATA = Path(__file__).parent / "data"
SOURCE, TARGET = torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([[1, 8], [1, 9]])
TIES = ("all", "inputs", "decoder", "none")
POSITIONS = ["sinusoidal", "learned"]


def build(tie: str = "all", positions: str = "sinusoidal", seed: int = 0, **changes: object) -> EncoderDecoder:
    torch.manual_seed(seed)
    values = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, "max_length": 20}
    values |= {"tie": tie, "positions": positions}
    return EncoderDecoder(ModelSettings.model_validate(values | changes), 30, 30).eval()


@torch.no_grad()
def logits(model: nn.Module) -> Tensor:
    inner = store.unwrap(model)
    assert isinstance(inner, EncoderDecoder)
    return inner.logits(inner(SOURCE, SOURCE != 0, TARGET))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("tie", TIES)
def test_what_is_written_is_read(tmp_path: Path, tie: str, positions: str) -> None:
    model = build(tie, positions, norm_placement="pre", dropout=0.3, norm_epsilon=1e-6, d_key=3).train()
    expected = logits(model.eval())
    store.write(tmp_path / "new" / "model", model.train())
    found = store.read(tmp_path / "new" / "model")
    assert not found.training
    assert found.settings == model.settings
    assert torch.equal(logits(found), expected)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("inputs", 2), ("decoder", 2), ("none", 3)])
def test_the_file_holds_each_matrix_once_and_no_table(tmp_path: Path, tie: str, matrices: int, positions: str) -> None:
    model = build(tie, positions)
    store.write(tmp_path, model)
    tensors = load_file(tmp_path / store.WEIGHTS)
    assert sum(tensor.shape == (30, 16) for tensor in tensors.values()) == matrices
    assert sum(tensor.shape == (20, 16) for tensor in tensors.values()) == 2 * (positions == "learned")
    assert sum(tensor.numel() for tensor in tensors.values()) == sum(p.numel() for p in model.parameters())
    assert not [name for name in tensors if "table" in name]


@pytest.mark.parametrize("tie", TIES)
def test_tied_matrices_are_still_one_after_reading_and_a_step(tmp_path: Path, tie: str) -> None:
    store.write(tmp_path, build(tie))
    model = store.read(tmp_path).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.logits(model(SOURCE, SOURCE != 0, TARGET)).log_softmax(-1)[..., 5].sum().backward()
    optimizer.step()
    assert torch.equal(model.target_embedding.weight, model.output) == (tie in ("all", "decoder"))
    assert torch.equal(model.source_embedding.weight, model.target_embedding.weight) == (tie in ("all", "inputs"))
    assert torch.equal(model.source_embedding.weight, model.output) == (tie == "all")


@pytest.mark.parametrize("written", TIES)
@pytest.mark.parametrize("asked", TIES)
def test_a_file_of_another_tying_is_refused_with_the_names(tmp_path: Path, written: str, asked: str) -> None:
    model = build(asked, seed=1)
    store.write(tmp_path, build(written))
    tensors = store.read_tensors(tmp_path / store.WEIGHTS)
    if written == asked:
        store.assign(model, tensors, "file")
        assert torch.equal(logits(model), logits(store.read(tmp_path)))
        return
    with pytest.raises(UserError, match=r"(missing|not expected): ((source|target)_embedding\.weight|embedding)"):
        store.assign(model, tensors, "file")


def test_everything_that_does_not_fit_is_listed_and_the_model_left_alone(tmp_path: Path) -> None:
    model = build()
    store.write(tmp_path, build(seed=1))
    path = tmp_path / store.WEIGHTS
    tensors = load_file(path)
    del tensors["encoder.0.feed_forward.expand.bias"]
    del tensors["decoder.1.feed_forward.expand.weight"]
    tensors["surplus"] = torch.zeros(1)
    tensors["output"] = torch.zeros(29, 16)
    save_file(tensors, path)
    before = logits(model)
    with pytest.raises(UserError) as caught:
        store.assign(model, store.read_tensors(path), str(path))
    assert str(caught.value) == (
        f"{path}: the weights do not fit the settings; missing: decoder.1.feed_forward.expand.weight, "
        "encoder.0.feed_forward.expand.bias; not expected: surplus; output is 29x16, not 30x16"
    )
    assert torch.equal(logits(model), before)
    with pytest.raises(UserError, match="not expected: surplus"):
        store.read(tmp_path)


class Compiled(nn.Module):
    """As `torch.compile` wraps a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


class Distributed(nn.Module):
    """As `DistributedDataParallel` wraps a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model


WRAPPERS = {
    "plain": lambda model: model,
    "compiled": torch.compile,
    "like compiled": Compiled,
    "distributed": Distributed,
    "both": lambda model: Compiled(Distributed(model)),
    "both, the other way": lambda model: Distributed(Compiled(model)),
}


@pytest.mark.parametrize("writing", WRAPPERS)
def test_wrappers_leave_no_trace_in_the_file_and_any_can_read_it(tmp_path: Path, writing: str) -> None:
    model = build()
    expected = logits(model)
    store.write(tmp_path, WRAPPERS[writing](model))
    tensors = load_file(tmp_path / store.WEIGHTS)
    assert set(tensors) == set(dict(build().named_parameters()))
    assert not [name for name in tensors if "_orig_mod" in name or "module." in name]
    for wrap in WRAPPERS.values():
        other = wrap(build(seed=1))
        store.assign(other, tensors, "file")
        assert torch.equal(logits(other), expected)


def test_only_models_of_this_package_are_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Linear"):
        store.write(tmp_path, nn.Linear(2, 2))


@pytest.mark.parametrize("change", [10, 40])
def test_the_reach_of_sinusoids_can_change_with_the_settings(tmp_path: Path, change: int) -> None:
    """The table is computed, so a longer or shorter model reads the same file; learned positions cannot."""
    for positions in POSITIONS:
        directory = tmp_path / positions
        model = build(positions=positions)
        store.write(directory, model)
        config = json.loads((directory / store.CONFIG).read_text(encoding="utf-8"))
        config["model"]["max_length"] = change
        (directory / store.CONFIG).write_text(json.dumps(config), encoding="utf-8")
        if positions == "sinusoidal":
            assert torch.equal(logits(store.read(directory)), logits(model))
        else:
            with pytest.raises(UserError, match=rf"positions\.weight is 20x16, not {change}x16"):
                store.read(directory)


class Planted:
    """Unpickling this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["pickle", "torch", "empty", "half", "text", "folder", "missing"])
def test_a_damaged_or_foreign_weights_file_is_refused_and_runs_nothing(tmp_path: Path, kind: str) -> None:
    store.write(tmp_path, build())
    path, mark = tmp_path / store.WEIGHTS, tmp_path / "created"
    whole = path.read_bytes()
    path.unlink()
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Planted(mark)))
    elif kind == "torch":
        torch.save({"output": Planted(mark)}, path)
    elif kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "text": b"weights"}[kind])
    with pytest.raises(UserError, match=str(path)) as caught:
        store.read(tmp_path)
    if kind in {"pickle", "torch"}:
        assert "pickle checkpoints are not read" in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is not the configuration of a model of this package"),
        (
            {"version": 3},
            "has format version 3; this release reads versions up to 2: install the release that wrote it",
        ),
        ({"version": None}, "has format version None"),
        (
            {"family": "oracle"},
            "family: input should be 'encoder-decoder', 'causal-decoder' or 'encoder' (got 'oracle')",
        ),
        ({"modle": 1}, "modle is not a setting; did you mean model?"),
        ({"model": {"d_modle": 4}}, "model.d_modle is not a setting; did you mean model.d_model?"),
        ({"model": {"heads": 3, "d_model": 16}}, "model: heads = 3 does not divide d_model = 16"),
        ({"model": {"d_model": 15, "heads": 5}}, "model: sinusoidal positions need an even d_model, not 15"),
        ({"vocabulary": {"source": 30, "target": 29}}, 'model.tie = "all" needs one vocabulary for both sides'),
        ({"vocabulary": {"source": -3, "target": -3}}, "vocabulary.source: input should be greater than 0 (got -3)"),
    ],
)
def test_a_configuration_that_cannot_be_is_explained(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    store.write(tmp_path, build())
    path = tmp_path / store.CONFIG
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        store.read(tmp_path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[]", "should hold a JSON object"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
    ],
)
def test_a_configuration_that_is_no_json_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / store.CONFIG).write_bytes(content)
    with pytest.raises(UserError, match=message):
        store.read(tmp_path)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=f"{directory}: is not a model directory"):
            store.read(directory)


def test_a_model_is_complete_only_with_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written last: a stop before it leaves what is not taken for a model."""
    written = []
    atomic_write = store.atomic_write
    monkeypatch.setattr(store, "atomic_write", lambda path: written.append(path.name) or atomic_write(path))
    store.write(tmp_path, build())
    assert written == [store.WEIGHTS, store.CONFIG]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written)


def test_the_configuration_is_plain_json_with_every_setting(tmp_path: Path) -> None:
    store.write(tmp_path, build())
    config = json.loads((tmp_path / store.CONFIG).read_text(encoding="utf-8"))
    assert (config["format"], config["version"]) == ("regard.model", 2)
    assert config["vocabulary"] == {"source": 30, "target": 30}
    assert set(config["model"]) == set(ModelSettings.model_fields)


@pytest.mark.parametrize("name", ["v1-post-tied", "v1-pre-untied"])
def test_directories_of_the_first_format_stay_readable_for_ever(name: str) -> None:
    model = store.read(DATA / name)
    golden = json.loads((DATA / name / "golden.json").read_text(encoding="utf-8"))
    source = torch.tensor(golden["source"])
    with torch.no_grad():
        found = model.logits(model(source, source != 0, torch.tensor(golden["target"])))
    torch.testing.assert_close(found, torch.tensor(golden["logits"]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_model": 2**16}, "the weights do not fit the settings"),
        ({"d_ff": 2**20, "encoder_layers": 900}, "the weights do not fit the settings"),
        ({"encoder_layers": 10**9}, "model.encoder_layers: input should be less than or equal to 1000"),
        ({"max_length": 10**12}, "model.max_length: input should be less than"),
    ],
)
def test_a_configuration_of_absurd_size_is_refused_before_memory_is_asked_for(
    tmp_path: Path, change: dict[str, int], message: str
) -> None:
    store.write(tmp_path, build())
    config = json.loads((tmp_path / store.CONFIG).read_text(encoding="utf-8"))
    config["model"] |= change
    (tmp_path / store.CONFIG).write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        store.read(tmp_path)
