"""How a text decoder searches, said in the words of `transformers` and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.convert.generation import FILE, read_generation, write_generation
from regard.convert.mapping import NONE
from regard.search.settings import GenerationSettings

DRAWN = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1}
WAYS: dict[str, dict[str, Any]] = {
    "drawn": DRAWN,
    "greedy": {"temperature": 0.0},
    "beam": {"temperature": 0.0, "beam": 3, "alpha": 0.4},
    "rules": DRAWN | {"repetition_penalty": 1.3, "no_repeat": 4},
    "rules of a beam": {"temperature": 0.0, "beam": 2, "alpha": 1.0, "repetition_penalty": 1.3, "no_repeat": 2},
}


def there_and_back(directory: Path, settings: GenerationSettings) -> tuple[dict[str, Any], Any]:
    (directory / "config.json").write_text("{}")
    write_generation(directory, settings.model_dump(mode="json"), NONE)
    return json.loads((directory / FILE).read_text()), read_generation(directory, "causal-decoder")


@pytest.mark.parametrize("values", WAYS.values(), ids=WAYS)
def test_a_way_of_searching_comes_back(tmp_path: Path, values: dict[str, Any]) -> None:
    settings = GenerationSettings.parse(values, "test")
    theirs, back = there_and_back(tmp_path, settings)
    told = {"temperature", "top_k", "top_p", "min_p", "beam", "repetition_penalty", "no_repeat"}
    told |= {"alpha"} if settings.beam > 1 else set()
    assert back.model_dump(include=told) == settings.model_dump(include=told)
    assert theirs.get("do_sample", False) == (settings.temperature > 0)


def test_a_beam_is_not_drawn_from_whatever_the_temperature(tmp_path: Path) -> None:
    theirs, back = there_and_back(tmp_path, GenerationSettings(beam=3, alpha=0.4, temperature=1.0))
    assert "do_sample" not in theirs
    assert (theirs["num_beams"], theirs["length_penalty"]) == (3, 0.4)
    assert (back.beam, back.alpha, back.deterministic) == (3, 0.4, True)
