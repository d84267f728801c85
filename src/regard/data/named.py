"""Corpora by name, parallel or labelled: fetched once, kept in a cache, split into train, dev and test.

To add one, write a function that builds it and register it with `@corpus`, as at the end of this file.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from regard.data import ui_kinds, ui_strings
from regard.data.split import Split
from regard.errors import UserError
from regard.text.lines import atomic_write, write_lines

log = logging.getLogger("regard")

Builder = Callable[[str, Path], Split]
"""From the target language and a folder for downloads to the pairs; `UserError` for a language it does not have."""


@dataclass(frozen=True)
class _Entry:
    """What is registered about a corpus."""

    name: str
    source_language: str
    origin: str
    licence: str
    attribution: str
    edition: str
    build: Builder


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus on disk, and what a model card must say about it."""

    name: str
    source_language: str
    target_language: str
    origin: str
    licence: str
    attribution: str
    train: tuple[Path, Path]
    """Source and target file; so for `dev` and `test`."""
    dev: tuple[Path, Path]
    test: tuple[Path, Path]


MANIFEST = "corpus.json"

_Files = dict[str, tuple[Path, Path]]
"""Source and target file of each part."""

_registry: dict[str, _Entry] = {}


def corpus(
    name: str, *, source_language: str, origin: str, licence: str, attribution: str, edition: str
) -> Callable[[Builder], Builder]:
    """Register the decorated function as the builder of a corpus.

    `edition` names what the files are made from and how: a cache of another edition is built again.
    """

    def register(build: Builder) -> Builder:
        _registry[name] = _Entry(name, source_language, origin, licence, attribution, edition, build)
        return build

    return register


def names() -> list[str]:
    """The names that `get` knows."""
    return sorted(_registry)


def get(name: str, target: str, cache: Path | None = None) -> NamedCorpus:
    """The files of a named corpus with `target` as its target language, fetched and built if they are not there.

    They lie in `cache`, by default in $REGARD_CACHE or in `regard` in the user's cache folder. Files that were damaged
    or not completed are built again. Raises `UserError` for an unknown name or language, or without network.
    """
    if name not in _registry:
        raise UserError(f"there is no corpus {name!r}; known: {', '.join(names())}")
    entry = _registry[name]
    folder = (cache or default_cache()) / name
    place = folder / f"{entry.source_language}-{target}"
    files = {
        part: (place / f"{part}.{entry.source_language}", place / f"{part}.{target}")
        for part in ("train", "dev", "test")
    }
    if not _is_complete(place, entry, files):
        log.info("building the corpus %s (%s) in %s", name, target, place)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: cannot be made: {error.strerror}; name another cache") from None
        _write(place, entry, files, entry.build(target, folder))
    return NamedCorpus(name, entry.source_language, target, entry.origin, entry.licence, entry.attribution, **files)


def default_cache() -> Path:
    """Where named corpora are kept: $REGARD_CACHE, or `regard` in the user's cache folder."""
    chosen = os.environ.get("REGARD_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"


def _is_complete(place: Path, entry: _Entry, files: _Files) -> bool:
    """Whether the manifest is there, which is written last, and the files are those that it lists."""
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest == _manifest(entry, files))
    except (OSError, ValueError):
        return False


def _manifest(entry: _Entry, files: _Files) -> dict[str, object]:
    paths = [path for pair in files.values() for path in pair]
    return {"edition": entry.edition, "sha256": {path.name: _sha256(path) for path in paths}}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _write(place: Path, entry: _Entry, files: _Files, parts: Split) -> None:
    """Write the files, each at once and the manifest last; two processes write the same bytes."""
    place.mkdir(exist_ok=True)
    for part, (source, target) in files.items():
        pairs = getattr(parts, part)
        write_lines(source, (text for text, _ in pairs))
        write_lines(target, (text for _, text in pairs))
    counts = ", ".join(f"{part} {len(getattr(parts, part)):,}" for part in files)
    write_lines(
        place / "README.txt",
        [
            f"{entry.name}, {place.name}: {counts} pairs",
            f"Made by regard from: {entry.origin}",
            f"Edition: {entry.edition}",
            f"Licence: {entry.licence}",
            f"Attribution: {entry.attribution}",
        ],
    )
    with atomic_write(place / MANIFEST) as file:
        file.write(json.dumps(_manifest(entry, files), indent=2).encode())


@corpus(
    "ui-strings",
    source_language="en",
    origin=f"the translation catalogues in the wheel homeassistant {ui_strings.RELEASE} (https://www.home-assistant.io)",
    licence="Apache-2.0",
    attribution="Copyright the Home Assistant authors; white space folded, untranslated and repeated texts left out",
    edition=f"homeassistant {ui_strings.RELEASE}, split 1",
)
def _ui_strings(target: str, cache: Path) -> Split:
    return ui_strings.build(target, cache)


@corpus(
    "ui-kinds",
    source_language="en",
    origin=f"the English catalogues in the wheel homeassistant {ui_strings.RELEASE} (https://www.home-assistant.io)",
    licence="Apache-2.0",
    attribution="Copyright the Home Assistant authors; white space folded, labelled by their place in the catalogues",
    edition=f"homeassistant {ui_strings.RELEASE}, labels 2",
)
def _ui_kinds(target: str, cache: Path) -> Split:
    # One wheel for both corpora: it lies with the other.
    shared = cache.parent / "ui-strings"
    shared.mkdir(exist_ok=True)
    return ui_kinds.build(target, shared)
