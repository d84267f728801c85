"""Runs that go on from a model: mixed text, longer vocabularies, and what the optimizer remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.data.dataset import PairDataset
from regard.errors import UserError
from regard.model import store
from regard.model.transformer import CausalDecoder, EncoderDecoder
from regard.recipes import merge, parse_yaml
from regard.runs.run import build_model
from regard.runs.settings import RunSettings
from regard.runs.task import Run
from regard.runs.tasks import TASKS, resolve, written
from regard.text.extension import made_of
from regard.text.lines import write_lines
from regard.text.tokenizer import TokenizerPair
from regard.training.checkpoint import load_latest
from runs.small_runs import Killed, Recipe, carry_out, recipe

NEW = [f"the hypertensive patient is in the hospital {index}\tTHE HYPERTENSIVE PATIENT {index}" for index in range(60)]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of translation that has been carried out."""
    folder = tmp_path_factory.mktemp("before")
    carry_out(folder / "run", recipe(folder, "translation"))
    return folder / "run"


@pytest.fixture
def values(tmp_path: Path) -> Recipe:
    """A recipe of the same text, without what an initial model brings."""
    given = recipe(tmp_path, "translation")
    write_lines(tmp_path / "new.txt", NEW)
    return {key: value for key, value in given.items() if key not in ("tokenizer", "model")}


def on_top_of(before: Path, values: Recipe, folder: Path, **changes: Any) -> Recipe:
    """The recipe of a run on new text that goes on from another."""
    new = {"initial": str(before), "data": {"train": {"source": str(folder / "new.txt")}}}
    return merge(merge(values, new), changes)


def prepared(directory: Path, settings: RunSettings) -> Any:
    """The task of a run, its text prepared and nothing learned."""
    task = TASKS[settings.task]
    return task(Run(directory, settings, task.corpus(settings.data), lambda _: None))


def test_sources_are_mixed_by_weight_and_said(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")
    write_lines(tmp_path / "new.txt", NEW)
    values["data"]["mix"] = [{"source": str(tmp_path / "new.txt"), "weight": 1.5, "tag": "bt"}]
    said = carry_out(tmp_path / "run", values)
    assert any("the tag <bt> included" in line for line in said)
    assert any(
        line.startswith("train: 84 of 84 pairs,") and "weight 1: about 84 pairs an epoch" in line for line in said
    )
    mixed = next(line for line in said if line.startswith("mixed in, new.txt: 60 of 60 pairs, "))
    assert mixed.endswith("weight 1.5: about 90 pairs an epoch, tagged <bt>")
    assert any("174 pairs (by weight, from 2 sources)" in line for line in said)
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert "Mixed in: new.txt (weight 1.5, tagged <bt>). 174 pairs" in card
    tokenizers = TokenizerPair.load(tmp_path / "run")
    tag = tokenizers.source.tags["bt"]
    own, new = (PairDataset.open(tmp_path / "run" / "data" / f"{name}.arrow") for name in ("train", "mix-1"))
    assert {int(new.pair(index)[0][0]) for index in range(60)} == {tag}
    assert all(tag not in own.pair(index)[0] for index in range(len(own)))
    assert tag not in tokenizers.source.encode(["<bt> the dog"])[0]


def test_what_is_held_out_is_not_mixed_in_again(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")
    values["data"] = {key: value for key, value in values["data"].items() if key != "dev"}
    lines = [f"number {index}\tNUMBER {index}" for index in range(400)]
    write_lines(tmp_path / "train.txt", lines)
    values["data"]["mix"] = [{"source": values["data"]["train"]["source"]}]
    task = prepared(tmp_path / "run", resolve(values, "recipe"))
    texts = {task.tokenizers.source.decode([task.pairs.pair(index)[0].tolist()])[0] for index in range(len(task.pairs))}
    assert task.sources
    assert texts.isdisjoint(task.sources)
    assert len(task.pairs) == 2 * len(texts)


def test_mixed_text_that_changed_since_is_not_taken_for_the_same(tmp_path: Path) -> None:
    values = recipe(tmp_path, "translation")
    write_lines(tmp_path / "new.txt", NEW)
    values["data"]["mix"] = [{"source": str(tmp_path / "new.txt")}]
    prepared(tmp_path / "run", resolve(values, "recipe"))
    write_lines(tmp_path / "new.txt", NEW[1:])
    with pytest.raises(UserError, match=r"new\.txt: has changed since the run"):
        prepared(tmp_path / "run", resolve(values, "recipe"))


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ({"weight": 0}, "data.mix.0.weight: input should be greater than 0"),
        ({"tag": "unk"}, "tag: unk is the name of a control token"),
        ({"tag": "<bt>"}, "data.mix.0.tag: string should match"),
        ({"wieght": 2}, "data.mix.0.wieght is not a setting; did you mean data.mix.weight?"),
    ],
)
def test_impossible_mixtures_are_refused(tmp_path: Path, mix: dict[str, Any], message: str) -> None:
    values = recipe(tmp_path, "translation")
    values["data"]["mix"] = [{"source": "a"} | mix]
    with pytest.raises(UserError) as caught:
        resolve(values, "recipe")
    assert message in str(caught.value)


def test_other_tasks_mix_nothing(tmp_path: Path) -> None:
    values = recipe(tmp_path, "language-model")
    values["data"]["mix"] = [{"source": "a"}]
    with pytest.raises(UserError, match=r"data\.mix means nothing to the task language-model"):
        resolve(values, "recipe")


def logits(model: EncoderDecoder, ids: list[int]) -> Tensor:
    source_BS = torch.tensor([[*ids, 2]])
    with torch.no_grad():
        hidden_BTD = model.eval()(source_BS, torch.ones_like(source_BS, dtype=torch.bool), torch.tensor([[1, *ids]]))
        return model.logits(hidden_BTD)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_longer_vocabulary_changes_no_output_before_it_has_learned(tmp_path: Path, tie: str) -> None:
    before = recipe(tmp_path, "translation")
    before["model"] |= {"tie": tie, "output_bias": True}
    carry_out(tmp_path / "before", before)
    write_lines(tmp_path / "new.txt", NEW)
    values = {key: value for key, value in before.items() if key not in ("tokenizer", "model")}
    values = on_top_of(tmp_path / "before", values, tmp_path, extend_vocabulary=12)
    values["data"]["mix"] = [{"source": str(tmp_path / "train.txt"), "tag": "old"}]
    task = prepared(tmp_path / "run", resolve(values, "recipe"))
    old = regard.load(tmp_path / "before", "cpu")
    model, size = build_model(task), old.tokenizers.source.size
    assert isinstance(model, EncoderDecoder)
    assert isinstance(old.model, EncoderDecoder)
    assert task.tokenizers.source.size == size + 13
    texts = ["the red dog is in the garden 3", "THE DOG", "unseen: Ωμέγα"]
    assert task.tokenizers.source.encode(texts) == old.tokenizers.source.encode(texts)
    for ids in old.tokenizers.source.encode(texts):
        assert torch.equal(logits(model, ids)[..., :size], logits(old.model, ids))
    parts = made_of(old.tokenizers.source, task.tokenizers.source)
    for name, tensor in store.parameters(model).items():
        weight = store.parameters(old.model)[name]
        if len(tensor) == size + 13:
            assert torch.equal(tensor[:size], weight)
            for row, each in zip(tensor[size:], parts, strict=True):
                expected = weight[list(each)].mean(dim=0) if each else weight.mean(dim=0)
                torch.testing.assert_close(row, expected)
        else:
            assert torch.equal(tensor, weight), name


def test_a_longer_vocabulary_is_learned_and_used(tmp_path: Path, learned: Path, values: Recipe) -> None:
    said = carry_out(tmp_path / "run", on_top_of(learned, values, tmp_path, extend_vocabulary=12))
    after, before = regard.load(tmp_path / "run", "cpu"), regard.load(learned, "cpu")
    assert after.tokenizers.source.size == before.tokenizers.source.size + 12
    assert any(f"vocabulary: {after.tokenizers.source.size} pieces for both sides" in line for line in said)
    [new], [old] = (each.tokenizers.source.encode(["hypertensive"]) for each in (after, before))
    assert len(new) < len(old)
    assert after.tokenizers.source.decode([new]) == ["hypertensive"]
    assert isinstance(after.translate("the hypertensive patient")[0], str)


def test_a_language_model_gets_a_longer_vocabulary(tmp_path: Path) -> None:
    before = recipe(tmp_path, "language-model")
    carry_out(tmp_path / "before", before)
    values = {key: value for key, value in before.items() if key not in ("tokenizer", "model")}
    write_lines(tmp_path / "new.txt", [line.partition("\t")[0] for line in NEW])
    values = on_top_of(tmp_path / "before", values, tmp_path, extend_vocabulary=5)
    task = prepared(tmp_path / "run", resolve(values, "recipe"))
    old, model = regard.load(tmp_path / "before", "cpu"), build_model(task)
    assert isinstance(model, CausalDecoder)
    ids_BT = torch.tensor(old.tokenizers.source.encode(["the red dog"]))
    with torch.no_grad():
        found, expected = (each.logits(each.eval()(ids_BT)) for each in (model, old.model))
    assert found.shape[-1] == expected.shape[-1] + 5
    assert torch.equal(found[..., :-5], expected)


def test_the_optimizer_may_keep_what_it_remembers(tmp_path: Path, learned: Path, values: Recipe) -> None:
    changes: Recipe = {"training": {"steps": 1, "schedule": {"peak_rate": 1e-30}}, "extend_vocabulary": 7}
    moments = {}
    for choice in ("keep", "reset"):
        asked = on_top_of(learned, values, tmp_path, initial_optimizer=choice, **changes)
        carry_out(tmp_path / choice, asked)
        found = load_latest(tmp_path / choice / "checkpoints")
        assert found is not None
        moments[choice] = found[1].optimizer
    found = load_latest(learned / "checkpoints")
    assert found is not None
    before = found[1].optimizer
    name = "output"
    assert moments["keep"].keys() == before.keys()
    assert moments["keep"][f"step.{name}"] == before[f"step.{name}"] + 1
    assert moments["reset"][f"step.{name}"] == 1
    size = len(before[f"exp_avg.{name}"])
    kept, first = moments["keep"][f"exp_avg.{name}"], moments["reset"][f"exp_avg.{name}"]
    # One step from there: beta1 of what was remembered, and the gradient's share, which the other run has alone.
    torch.testing.assert_close(kept[:size], 0.9 * before[f"exp_avg.{name}"] + first[:size])
    assert len(kept) == size + 7
    torch.testing.assert_close(kept[size:], first[size:])


def test_a_head_for_another_question_has_nothing_to_remember(tmp_path: Path) -> None:
    carry_out(tmp_path / "before", recipe(tmp_path, "masked-language-model"))
    given = recipe(tmp_path, "text-classification")
    values = {key: value for key, value in given.items() if key not in ("tokenizer", "model")}
    asked = merge(values, {"initial": str(tmp_path / "before"), "initial_optimizer": "keep", "training": {"steps": 1}})
    carry_out(tmp_path / "run", asked)
    found = load_latest(tmp_path / "run" / "checkpoints")
    assert found is not None
    steps = {name.removeprefix("step."): int(value) for name, value in found[1].optimizer.items() if value.ndim == 0}
    assert {value for name, value in steps.items() if name.startswith("head.")} == {1}
    assert {value for name, value in steps.items() if not name.startswith("head.")} == {13}


def test_with_all_of_it_a_run_is_repeated_to_the_byte(tmp_path: Path, learned: Path, values: Recipe) -> None:
    asked = on_top_of(learned, values, tmp_path, initial_optimizer="keep", extend_vocabulary=5)
    asked["data"]["mix"] = [{"source": str(tmp_path / "train.txt"), "weight": 0.3, "tag": "old"}]
    carry_out(tmp_path / "unbroken", asked)
    with pytest.raises(Killed):
        carry_out(tmp_path / "run", asked, kill=6)
    carry_out(tmp_path / "run", asked)
    paths = [tmp_path / directory / "model" / "model.safetensors" for directory in ("unbroken", "run")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_settings_of_fine_tuning_are_a_recipe_as_written(tmp_path: Path, learned: Path, values: Recipe) -> None:
    asked = on_top_of(learned, values, tmp_path, initial_optimizer="keep", extend_vocabulary=5)
    asked["data"]["mix"] = [{"source": str(tmp_path / "train.txt"), "weight": 0.5}]
    settings = resolve(asked, "recipe")
    assert resolve(parse_yaml(written(settings), "again"), "again") == settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial": None, "initial_optimizer": "keep"}, "goes on from a run: name it by initial"),
        ({"initial": None, "extend_vocabulary": 9}, "of another model longer: name that by initial"),
        ({"adapters": {}, "extend_vocabulary": 9}, "adds weights that must learn: leave out adapters"),
        ({"adapters": {}, "initial_optimizer": "keep"}, "keep cannot be with adapters"),
        (
            {"initial_optimizer": "keep", "training": {"optimizer": {"kind": "muon"}}},
            "had the optimizer adamw, not muon",
        ),
    ],
)
def test_what_cannot_be_together_is_refused(
    tmp_path: Path, learned: Path, values: Recipe, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        resolve(on_top_of(learned, values, tmp_path, **changes), "recipe")


def test_a_model_without_checkpoints_has_nothing_to_keep(tmp_path: Path, learned: Path, values: Recipe) -> None:
    with pytest.raises(
        UserError, match=r"initial_optimizer: keep needs .* a run with checkpoints, and .*model has none"
    ):
        resolve(on_top_of(learned / "model", values, tmp_path, initial_optimizer="keep"), "recipe")


def test_a_tag_cannot_be_learned_by_adapters(tmp_path: Path, learned: Path, values: Recipe) -> None:
    asked = on_top_of(learned, values, tmp_path, adapters={})
    asked["data"]["mix"] = [{"source": str(tmp_path / "train.txt"), "tag": "old"}]
    with pytest.raises(UserError, match=r"data\.mix: a tag that the initial model does not know"):
        prepared(tmp_path / "run", resolve(asked, "recipe"))
