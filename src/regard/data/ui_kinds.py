"""English interface texts of Home Assistant, labelled by what they are for: a corpus for classification."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

from regard.data.corpus import Pair
from regard.data.split import Split
from regard.data.ui_strings import HELD_OUT, fetch, texts
from regard.errors import UserError

Key = tuple[str, ...]

TARGET = "label"
"""The labels stand in files with this name in place of a language."""


def build(target: str, cache: Path) -> Split:
    """Pairs of a text and its label; the wheel is kept in `cache`.

    Texts that are the same but for case, digits and signs ("Alarm 12", "Alarm 13") stand in one part, by a hash of what
    they have in common.
    """
    if target != TARGET:
        raise UserError(f"this corpus has labels, not the language {target!r}: its target is {TARGET}")
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in labelled_texts(fetch(cache)):
        groups[letters(pair[0])].append(pair)
    held = min(HELD_OUT, sum(map(len, groups.values())) // 10)
    parts = Split()
    for name in sorted(groups, key=lambda letters: sha256(letters.encode()).digest()):
        room = (part for part in (parts.dev, parts.test) if len(part) + len(groups[name]) <= held)
        next(room, parts.train).extend(groups[name])
    return parts


def letters(text: str) -> str:
    """The letters of a text, in lower case; all of a text without any."""
    return "".join(filter(str.isalpha, text.casefold())) or text


def labelled_texts(wheel: Path) -> list[Pair]:
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
