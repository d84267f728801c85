"""The models of a comparison are of one size, and take over what is the recipe's."""

from __future__ import annotations

from typing import Any

import pytest

from regard.errors import UserError
from regard.experiments.contenders import Contender, ContendersSettings, contenders, nearest_width, parameters
from regard.experiments.convolution import ConvolutionSettings
from regard.experiments.recurrent import RecurrentSettings
from regard.runs.settings import RunSettings
from regard.runs.tasks import resolve

SIZES = (500, 500)


def recipe(**model: Any) -> RunSettings:
    values = {
        "d_model": 32,
        "d_ff": 64,
        "heads": 2,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.25,
        "max_length": 60,
    }
    training = {"steps": 7, "schedule": {"kind": "linear", "peak_rate": 0.01, "warmup_steps": 2}}
    data = {"train": {"source": "train.tsv"}, "max_length": 50}
    return resolve({"data": data, "model": values | model, "training": training}, "test")


def compared(settings: RunSettings, **own: Any) -> dict[str, Contender]:
    found = contenders(settings, ContendersSettings.parse(own, "test"), SIZES)
    assert [each.name for each in found] == ["transformer", "lstm", "convolution"]
    return {each.name: each for each in found}


def test_all_have_nearly_the_same_number_of_parameters() -> None:
    found = compared(recipe())
    wanted = parameters(found["transformer"].build, SIZES)
    # Embeddings and, in the Transformer, two layers of 8,544 and two of 12,832 parameters.
    assert wanted == 500 * 32 + 2 * 8_544 + 2 * 12_832
    for name in ("lstm", "convolution"):
        size = parameters(found[name].build, SIZES)
        assert abs(size / wanted - 1) < 0.03
        assert sum(each.numel() for each in found[name].build(*SIZES).parameters()) == size


def test_what_belongs_to_the_recipe_is_taken_over_unless_told_otherwise() -> None:
    found = compared(
        recipe(tie="decoder", max_length=70),
        lstm={"model": {"dropout": 0.5}, "training": {"schedule": {"peak_rate": 0.002}}},
        convolution={"model": {"hidden": 9, "kernel": 5}},
    )
    lstm, convolution = found["lstm"].model, found["convolution"].model
    assert isinstance(lstm, RecurrentSettings)
    assert isinstance(convolution, ConvolutionSettings)
    assert (lstm.d_model, lstm.tie, lstm.max_length, lstm.dropout) == (32, "decoder", 70, 0.5)
    assert (convolution.hidden, convolution.kernel, convolution.dropout) == (9, 5, 0.25)
    assert [each.training.schedule.peak_rate for each in found.values()] == [0.01, 0.002, 0.01]
    assert {each.training.steps for each in found.values()} == {7}
    assert found["lstm"].training.schedule.warmup_steps == 2


def test_a_size_that_cannot_be_reached_is_a_sentence() -> None:
    """2 * 5,000 vectors of positions are more than the Transformer has of everything."""
    with pytest.raises(UserError, match=r"convolution.model: with hidden = 1 there are .* lower model.max_length"):
        compared(recipe(max_length=5000))


def test_the_nearest_width_by_hand() -> None:
    """Squares: 81 is nearer to 85 than 100 is, and 100 nearer to 95."""
    assert nearest_width(lambda width: width**2, 85) == 9
    assert nearest_width(lambda width: width**2, 95) == 10
    assert nearest_width(lambda width: width**2, 100) == 10
    assert nearest_width(lambda width: width**2, 0) == 1
    assert nearest_width(lambda width: width, 10**9) == 2**14


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"lstm": {"model": {"hiden": 3}}}, "lstm.model: hiden is not a setting; did you mean hidden"),
        ({"lstm": {"modle": {}}}, "lstm.modle is not a setting; did you mean lstm.model"),
        ({"convolution": {"model": {"kernel": 4}}}, "convolution.model: kernel: a kernel without a middle"),
        ({"convolution": {"training": {"step": 4}}}, "convolution.training: step is not a setting; did you mean steps"),
        ({"transformer": {"model": {"d_ff": 4}}}, "transformer.model: the Transformer is the recipe's own"),
    ],
)
def test_impossible_settings_are_a_sentence(own: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compared(recipe(), **own)
