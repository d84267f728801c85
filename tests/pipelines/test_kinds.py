"""The pipelines by name: each is found, is for what the table says, and comes without the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

import regard
from regard import pipelines
from regard.pipelines.directory import VERBS, Pipeline
from regard.pipelines.kinds import PIPELINES


@pytest.mark.parametrize("name", pipelines.__all__)
def test_every_name_is_what_stands_under_it_in_its_module(name: str) -> None:
    assert getattr(pipelines, name).__name__ == name
    if name in regard.__all__:
        assert getattr(regard, name) is getattr(pipelines, name)


def test_other_names_are_not_there() -> None:
    assert not hasattr(pipelines, "Interpreter")


def test_the_table_names_the_pipeline_that_is_for_each_kind() -> None:
    classes = [each for name in pipelines.__all__ if isinstance(each := getattr(pipelines, name), type)]
    for_kinds = {kind: each.__name__ for each in classes if issubclass(each, Pipeline) for kind in each.kinds}
    assert for_kinds == PIPELINES
    assert VERBS.keys() == PIPELINES.keys()


@pytest.mark.parametrize(
    ("name", "others"),
    [("Translator", {"classifier", "filler", "generator", "images", "transcriber"}), ("Classifier", {"translator"})],
)
def test_a_pipeline_comes_without_the_others(name: str, others: set[str]) -> None:
    code = f"import sys, regard\nregard.{name}\nprint(*(name for name in sys.modules if name.startswith('regard.')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = run.stdout.split()
    assert "regard.pipelines.directory" in imported
    assert not {f"regard.pipelines.{other}" for other in others} & set(imported)
