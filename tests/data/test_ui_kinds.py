"""The labelled corpus: what the labels are, and that no part has a text of another."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from regard.data import ui_kinds
from regard.data.split import Split
from regard.errors import UserError

ENGLISH = {
    "title": "Lamp",
    "config": {
        "step": {"user": {"title": "Add a lamp", "data": {"host": "Host"}, "data_description": {"host": "Where"}}}
    },
    "exceptions": {"gone": {"message": "The lamp is gone"}},
    "entity": {"light": {"main": {"name": "Main light", "state": {"on": "On"}}}},
    "services": {"flash": {"name": "Flash", "description": "Flashes"}, "lamp": {"name": "Lamp", "description": ""}},
}


def wheel(folder: Path, english: object) -> Path:
    path = folder / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("homeassistant/components/lamp/translations/en.json", json.dumps(english))
        archive.writestr("homeassistant/components/lamp/translations/de.json", json.dumps({"title": "Lampe"}))
    return path


def test_a_text_is_labelled_by_its_place_unless_it_has_two(tmp_path: Path) -> None:
    assert dict(ui_kinds.labelled_texts(wheel(tmp_path, ENGLISH))) == {
        "Add a lamp": "title",
        "Host": "field",
        "Where": "help",
        "The lamp is gone": "error",
        "Main light": "entity",
        "On": "state",
        "Flash": "action name",
        "Flashes": "action description",
    }


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Split:
    texts = {
        f"k{i}-{j}": {"name": f"Alarm {chr(97 + i % 26)}{chr(97 + i // 26)} {j}{'.' * (j % 2)}"}
        for i in range(60)
        for j in range(3)
    }
    path = wheel(tmp_path, {"entity": {"sensor": texts}, "services": {str(i): {"name": f"{i}%"} for i in range(20)}})
    monkeypatch.setattr(ui_kinds, "fetch", lambda cache: path)
    return ui_kinds.build("label", tmp_path)


def test_texts_that_differ_in_digits_and_signs_stand_in_one_part(parts: Split) -> None:
    names = [{ui_kinds.letters(text) for text, _ in part} for part in (parts.train, parts.dev, parts.test)]
    assert not names[0] & names[1]
    assert not names[0] & names[2]
    assert not names[1] & names[2]
    assert [len(part) for part in (parts.train, parts.dev, parts.test)] == [160, 20, 20]
    assert len({*parts.train, *parts.dev, *parts.test}) == 200


def test_what_texts_have_in_common() -> None:
    assert ui_kinds.letters("Alarm 12") == ui_kinds.letters("ALARM: 3.") == "alarm"
    assert ui_kinds.letters("140 %") == "140 %"


def test_it_has_no_language(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has labels, not the language 'de'"):
        ui_kinds.build("de", tmp_path)
