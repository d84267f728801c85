"""From files to what training reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.runs.settings import RunSettings
from regard.runs.task import Run
from regard.runs.tasks import resolve
from regard.runs.translation import Translation
from regard.text.lines import write_lines


def pairs(count: int) -> list[tuple[str, str]]:
    return [(f"source number {index} of many", f"Ziel Nummer {index} von vielen") for index in range(count)]


def settings_for(folder: Path, chosen: list[tuple[str, str]], **data: object) -> RunSettings:
    write_lines(folder / "a", (source for source, _ in chosen))
    write_lines(folder / "b", (target for _, target in chosen))
    files = {"train": {"source": str(folder / "a"), "target": str(folder / "b")}}
    return resolve({"data": files | data, "tokenizer": {"size": 300}}, "test")


def prepared(folder: Path, settings: RunSettings) -> tuple[Translation, list[str]]:
    said: list[str] = []
    run = Run(folder / "run", settings, Translation.corpus(settings.data), said.append)
    return Translation(run), said


def texts(result: Translation) -> list[str]:
    return result.tokenizers.source.decode([list(result.pairs.pair(i)[0]) for i in range(len(result.pairs))])


def test_held_out_pairs_are_not_trained_on(tmp_path: Path) -> None:
    chosen = pairs(400)
    result, said = prepared(tmp_path, settings_for(tmp_path, chosen))
    held_out = set(result.sources)
    assert 5 <= len(held_out) <= 50
    assert held_out.isdisjoint(texts(result))
    assert held_out | set(texts(result)) == {source for source, _ in chosen}
    assert any("held out for validation" in line for line in said)


def test_equal_sources_are_held_out_together(tmp_path: Path) -> None:
    chosen = [(f"sentence {index % 40}", f"Satz {index}") for index in range(400)]
    result, _ = prepared(tmp_path, settings_for(tmp_path, chosen))
    assert set(result.sources).isdisjoint(texts(result))


def test_what_is_left_out_is_said_with_its_line(tmp_path: Path) -> None:
    chosen = pairs(60)
    chosen[7] = ("", "leer")
    chosen[20] = chosen[19]
    dev = {"source": str(tmp_path / "a"), "target": str(tmp_path / "b")}
    result, said = prepared(tmp_path, settings_for(tmp_path, chosen, dev=dev))
    assert len(result.pairs) == 58
    assert any("empty side (first in line 8)" in line for line in said)
    assert any("duplicate (first in line 21)" in line for line in said)


def test_a_second_sitting_prepares_nothing_anew(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, pairs(100))
    first, _ = prepared(tmp_path, settings)
    written = (tmp_path / "run" / "data" / "train.arrow").stat().st_mtime_ns
    second, said = prepared(tmp_path, settings)
    assert said == []
    assert (tmp_path / "run" / "data" / "train.arrow").stat().st_mtime_ns == written
    assert second.tokenizers.fingerprint == first.tokenizers.fingerprint
    assert second.sources == first.sources


def test_unequal_files_are_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, pairs(30))
    write_lines(tmp_path / "b", ["only one line"])
    with pytest.raises(UserError, match="30"):
        prepared(tmp_path, settings)
    assert not (tmp_path / "run" / "data" / "train.arrow").exists()


def test_text_that_changed_since_is_not_taken_for_the_same(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, pairs(60))
    prepared(tmp_path, settings)
    write_lines(tmp_path / "a", (f"another source {index}" for index in range(60)))
    with pytest.raises(UserError, match="a: has changed since the run"):
        prepared(tmp_path, settings)
    (tmp_path / "a").unlink()
    assert prepared(tmp_path, settings)[1] == []


def test_text_prepared_anew_does_not_go_with_old_checkpoints(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, pairs(60))
    prepared(tmp_path, settings)
    (tmp_path / "run" / "checkpoints" / "step-5").mkdir(parents=True)
    shutil.rmtree(tmp_path / "run" / "data")
    with pytest.raises(UserError, match="the checkpoints beside it were learned from what it held"):
        prepared(tmp_path, settings)
