"""Directories of `transformers`, read and written without that library: nothing is overlooked, nothing overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.convert import huggingface
from regard.convert.architectures import ARCHITECTURES
from regard.convert.config import Config
from regard.convert.mapping import Blueprint, Ids, essence, plus, scaled, stacked, without_leading
from regard.errors import JobError, UserError
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder

IDS = Ids(pad=1, bos=0, eos=2, start=2)
BART = {
    "d_model": 8,
    "d_ff": 12,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "positions": "learned",
    "max_length": 10,
    "embedding_scale": 1.0,
    "embedding_norm": True,
    "feed_forward": "gelu",
    "output_bias": True,
}


def build(seed: int = 0, **changes: Any) -> EncoderDecoder:
    torch.manual_seed(seed)
    model = EncoderDecoder(ModelSettings.parse(BART | changes, "test"), 11, 11).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture
def bart(tmp_path: Path) -> Path:
    huggingface.write(tmp_path / "bart", build(), IDS)
    return tmp_path / "bart"


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(directory: Path, drop: tuple[str, ...] = (), **more: torch.Tensor) -> None:
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if name not in drop}
    save_file(kept | more, directory / "model.safetensors")


def same(left: EncoderDecoder, right: EncoderDecoder) -> bool:
    ours, theirs = left.state_dict(), right.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_what_is_written_is_read(bart: Path) -> None:
    model, architecture, plan = huggingface.read(bart)
    assert architecture.name == "bart"
    assert plan.ids == IDS
    assert same(model, build())
    assert model.output is model.target_embedding.weight
    assert not model.training


def test_weights_in_several_files_are_one_model(bart: Path) -> None:
    tensors = load_file(bart / "model.safetensors")
    (bart / "model.safetensors").unlink()
    places = {name: f"model-{i % 3 + 1:05}-of-00003.safetensors" for i, name in enumerate(sorted(tensors))}
    for place in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == place}, bart / place)
    (bart / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert same(huggingface.read(bart)[0], build())

    (bart / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00003\.safetensors: is missing"):
        huggingface.read(bart)


def test_a_large_model_is_written_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "SHARD", 1500)
    huggingface.write(tmp_path / "bart", build(), IDS)
    files = sorted((tmp_path / "bart").glob("*.safetensors"))
    assert len(files) > 2
    assert all(path.name.endswith(f"-of-{len(files):05}.safetensors") for path in files)
    index = json.loads((tmp_path / "bart" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in files}
    assert index["metadata"]["total_size"] >= sum(parameter.nbytes for parameter in build().parameters())
    assert same(huggingface.read(tmp_path / "bart")[0], build())


def test_an_index_may_not_point_elsewhere(bart: Path, tmp_path: Path) -> None:
    (bart / "model.safetensors").rename(tmp_path / "model.safetensors")
    places = dict.fromkeys(load_file(tmp_path / "model.safetensors"), "../model.safetensors")
    (bart / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(UserError, match=r"bart/model\.safetensors: is missing"):
        huggingface.read(bart)


def test_a_base_model_has_its_names_without_prefix(bart: Path) -> None:
    tensors = load_file(bart / "model.safetensors")
    base = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    save_file(base, bart / "model.safetensors")
    model = huggingface.read(bart)[0]
    assert torch.equal(model.output, build().output)
    assert torch.equal(model.output_bias, torch.zeros(11))


def test_a_pickle_is_refused_unread_with_the_way_out(bart: Path) -> None:
    (bart / "model.safetensors").unlink()
    (bart / "pytorch_model.bin").write_bytes(b"\x80\x02cposix\nsystem\n.")
    with pytest.raises(UserError, match=r"pytorch_model\.bin.*not read; .*save_pretrained"):
        huggingface.read(bart)
    (bart / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        huggingface.read(bart)


def test_all_that_does_not_fit_is_listed(bart: Path) -> None:
    change_weights(
        bart,
        drop=("model.encoder.layers.0.fc1.bias", "model.decoder.layers.1.self_attn.q_proj.weight"),
        strange=torch.zeros(2),
        **{"model.encoder.layers.0.fc2.bias": torch.zeros(9)},
    )
    with pytest.raises(UserError) as caught:
        huggingface.read(bart)
    message = str(caught.value)
    assert "missing: model.decoder.layers.1.self_attn.q_proj.weight, model.encoder.layers.0.fc1.bias" in message
    assert "not expected: strange" in message
    assert "of another shape: model.encoder.layers.0.fc2.bias is 9, not 8" in message


def test_every_value_that_is_not_supported_is_listed(bart: Path) -> None:
    change_config(
        bart,
        activation_function="snake",
        decoder_ffn_dim=16,
        normalize_before=True,
        attention_temperature=2.0,
        adapters={"rank": 4},
        switched_off=False,
        not_given=None,
        num_beams=5,
    )
    with pytest.raises(UserError) as caught:
        huggingface.read(bart)
    message = str(caught.value)
    for part in (
        "activation_function = 'snake'",
        "decoder_ffn_dim = 16",
        "normalize_before = True",
        "attention_temperature = 2.0",
        "adapters = {'rank': 4}",
    ):
        assert part in message
    for part in ("switched_off", "not_given", "num_beams"):
        assert part not in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, r"model_type = 'mamba' is not supported; supported are bart, bert"),
        ({"model_type": ["bart"]}, r"model_type = \['bart'\] is not supported"),
        ({"d_model": "8"}, r"d_model should be a whole number, not '8'"),
        ({"d_model": True}, r"d_model should be a whole number, not True"),
        ({"d_model": -8}, r"d_model"),
        ({"dropout": []}, r"dropout should be a number"),
        ({"encoder_layers": 10**9}, r"encoder_layers"),
        ({"vocab_size": 0}, r"vocabulary"),
        ({"vocab_size": 2**40}, r"vocabulary"),
        ({"d_model": 2**15}, r"do not fit the configuration"),
    ],
)
def test_a_hostile_configuration_is_a_sentence(bart: Path, change: dict[str, Any], message: str) -> None:
    change_config(bart, **change)
    with pytest.raises(UserError, match=message):
        huggingface.read(bart)


def test_a_tied_weight_that_differs_is_refused(bart: Path) -> None:
    matrix = load_file(bart / "model.safetensors")["model.shared.weight"]
    change_weights(bart, **{"lm_head.weight": matrix.clone()})
    assert same(huggingface.read(bart)[0], build())
    change_weights(bart, **{"lm_head.weight": matrix + 1})
    with pytest.raises(UserError, match=r"lm_head\.weight should be the same as model\.shared\.weight"):
        huggingface.read(bart)


def test_a_tied_weight_may_stand_under_its_other_name_alone(bart: Path) -> None:
    matrix = load_file(bart / "model.safetensors")["model.shared.weight"]
    change_weights(bart, drop=("model.shared.weight",), **{"lm_head.weight": matrix})
    assert same(huggingface.read(bart)[0], build())


def test_the_precision_of_the_file_is_kept_or_not(bart: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(bart / "model.safetensors").items()}
    save_file(tensors, bart / "model.safetensors")
    assert {parameter.dtype for parameter in huggingface.read(bart)[0].parameters()} == {torch.float32}
    kept = huggingface.read(bart, dtype=None)[0]
    assert {parameter.dtype for parameter in kept.parameters()} == {torch.bfloat16}
    huggingface.write(bart.parent / "again", kept, IDS)
    assert load_file(bart.parent / "again" / "model.safetensors").keys() == tensors.keys()
    assert json.loads((bart.parent / "again" / "config.json").read_text())["dtype"] == "bfloat16"


def test_whole_numbers_are_no_weights(bart: Path) -> None:
    change_weights(bart, **{"model.encoder.layers.0.fc2.bias": torch.zeros(8, dtype=torch.int64)})
    with pytest.raises(UserError, match=r"fc2\.bias holds torch\.int64"):
        huggingface.read(bart)


def test_damaged_files_are_a_sentence(bart: Path) -> None:
    content = (bart / "model.safetensors").read_bytes()
    (bart / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"model\.safetensors: is damaged"):
        huggingface.read(bart)
    (bart / "model.safetensors").write_bytes(content)
    (bart / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json: is not valid JSON"):
        huggingface.read(bart)


def test_what_lacks_biases_only_is_written_with_zeros(tmp_path: Path) -> None:
    model = build(output_bias=False, feed_forward_bias=False, attention_bias="none")
    huggingface.write(tmp_path / "bart", model, IDS)
    again = huggingface.read(tmp_path / "bart")[0]
    source, keys = torch.tensor([[3, 4, 5]]), torch.ones(1, 3, dtype=torch.bool)
    target = torch.tensor([[2, 6, 7]])
    with torch.inference_mode():
        expected = model.logits(model(source, keys, target))
        torch.testing.assert_close(again.logits(again(source, keys, target)), expected, rtol=0, atol=1e-6)


def test_a_model_that_no_architecture_computes_is_refused_with_the_reasons(tmp_path: Path) -> None:
    model = build(positions="alibi", qk_norm=True)
    with pytest.raises(UserError) as caught:
        huggingface.write(tmp_path / "out", model, IDS)
    assert "bart: positions = alibi, qk_norm = True" in str(caught.value)
    with pytest.raises(UserError, match=r"can't be written as t5: .*feed_forward_bias = True"):
        huggingface.write(tmp_path / "out", build(feed_forward="relu"), IDS, "t5")
    with pytest.raises(UserError, match=r"architecture bort: is not known; known are bart"):
        huggingface.write(tmp_path / "out", build(), IDS, "bort")
    assert not (tmp_path / "out").exists()


def test_a_model_is_replaced_and_nothing_else_is(bart: Path, tmp_path: Path) -> None:
    huggingface.write(bart, build(seed=1), IDS)
    assert same(huggingface.read(bart)[0], build(seed=1))
    (bart / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"is not only a model \(it holds thesis\.txt\)"):
        huggingface.write(bart, build(), IDS)
    assert same(huggingface.read(bart)[0], build(seed=1))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"is a file"):
        huggingface.write(tmp_path / "file", build(), IDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bart", "file"]


def test_a_model_is_never_lost_on_the_way(bart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(JobError, match="bart: cannot be written: No space left"):
        huggingface.write(bart, build(seed=1), IDS)
    assert same(huggingface.read(bart)[0], build())
    assert [path.name for path in tmp_path.iterdir()] == ["bart"]
    monkeypatch.undo()

    bart.rename(tmp_path / ".bart.before")  # killed between the two names
    huggingface.write(bart, build(seed=1), IDS)
    assert same(huggingface.read(bart)[0], build(seed=1))
    assert [path.name for path in tmp_path.iterdir()] == ["bart"]


def test_positions_that_count_from_another_padding_are_refused(tmp_path: Path) -> None:
    sinusoids = {"layout": "halves", "spacing": "inclusive", "first": 2}
    model = build(
        positions="sinusoidal",
        sinusoids=sinusoids,
        norm_placement="pre",
        embedding_norm=False,
        output_bias=False,
    )
    assert huggingface.write(tmp_path / "out", model, IDS).name == "m2m_100"
    with pytest.raises(UserError, match=r"m2m_100: sinusoids\.first = 2 where padding is 0"):
        huggingface.write(tmp_path / "out", model, Ids(pad=0, eos=2, start=1), "m2m_100")


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        assert partial.is_dir()
        raise UserError("no tokenizer")

    with pytest.raises(UserError, match="no tokenizer"):
        huggingface.write(tmp_path / "out", build(), IDS, more=fail)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "operation",
    [stacked(2, 3, 1), without_leading(2), plus(1.0), scaled(0.25)],
    ids=["stacked", "rows", "plus", "scaled"],
)
def test_operations_are_undone_by_their_other_half(operation: Any) -> None:
    ours = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(operation.read(operation.write(ours)), ours)


def test_settings_that_stand_for_the_same_have_one_essence() -> None:
    def plan(**changes: Any) -> dict[str, Any]:
        return essence(Blueprint("encoder-decoder", ModelSettings.parse(BART | changes, "test"), 11, 11))

    assert plan(kv_heads=2, d_key=4, attention_scale=0.5, dropout=0.3, window=5) == plan()
    assert plan(embedding_scale=8**0.5) == plan(embedding_scale=None)
    for change in ({"kv_heads": 1}, {"norm_epsilon": 1e-6}, {"max_length": 12}, {"tie": "none"}):
        assert plan(**change) != plan()


@pytest.mark.parametrize("name", [name for name, each in ARCHITECTURES.items() if each.family == "encoder-decoder"])
def test_the_default_configuration_of_an_architecture_is_read_and_every_weight_has_a_row(name: str) -> None:
    architecture = ARCHITECTURES[name]
    plan = architecture.read(Config({"model_type": name}, name), set())
    outline = plan.outline()
    filled = {id(outline[row.ours]) for row in architecture.rows(plan) if not row.unused}
    assert filled == {id(parameter) for parameter in outline.values()}


def test_nothing_of_it_needs_transformers() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import regard.convert.directories\n"
        "from regard.cli import main\n"
        "main(['convert', '--list'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ARCHITECTURES)
