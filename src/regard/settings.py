"""Strict typed settings: an unknown key is an error.

Each class of settings lives beside the class it configures; this file holds what they share.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import Repr
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from regard.errors import UserError


class Settings(BaseModel):
    """Base of all settings: frozen, typed, and without tolerance for unknown keys.

    Fields are described by the docstrings below them. Only the documentation has pydantic read those, from the source,
    which takes longer than all else of making such a class.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, protected_namespaces=())

    @classmethod
    def parse(cls, values: Mapping[str, Any], origin: str) -> Self:
        """Validate `values`; a mistake raises `UserError` naming `origin` (a file or "command line") and the key."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError("; ".join(_sentence(cls, detail, origin) for detail in error.errors())) from None


def _sentence(root: type[Settings], detail: Any, origin: str) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        known = _keys(root)
        siblings = _siblings(known, [part for part in path if not part.isdigit()])  # without places in lists
        # By its last word, so that a key in the wrong section is found too; of equal words the one beside it wins.
        by_word = {name.rpartition(".")[2]: name for name in [*known, *siblings]}
        close = difflib.get_close_matches(path[-1], by_word, n=1, cutoff=0.6)
        hint = f"did you mean {by_word[close[0]]}?" if close else f"known here: {', '.join(siblings)}"
        return f"{origin}: {key} is not a setting; {hint}"
    return f"{origin}: {key + ': ' if key else ''}{complaint(detail)}"


def complaint(detail: Any) -> str:
    """What pydantic finds wrong with a value, in lower case and with the value."""
    message = detail["msg"].removeprefix("Value error, ")
    given = (
        "" if detail["type"] == "missing" or isinstance(detail["input"], dict) else f" (got {_short(detail['input'])})"
    )
    return f"{message[0].lower()}{message[1:]}{given}"


def _short(value: Any) -> str:
    """A value as Python writes it, of bounded length: lists of lists by YAML's anchors may be without end."""
    writer = Repr()
    writer.maxstring = writer.maxother = writer.maxlong = 80
    writer.maxlevel = 2
    return writer.repr(value)


def _keys(root: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key below `root`, sections included."""
    keys = []
    for name, field in root.model_fields.items():
        keys.append(prefix + name)
        section = section_class(field.annotation)
        if section:
            keys += _keys(section, f"{prefix}{name}.")
    return keys


def section_class(annotation: Any) -> type[Settings] | None:
    """The settings class inside an annotation such as `ModelSettings | None`, or None."""
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return next((kind for kind in candidates if isinstance(kind, type) and issubclass(kind, Settings)), None)


def _siblings(known: Iterable[str], path: list[str]) -> list[str]:
    prefix = "".join(f"{part}." for part in path[:-1])
    return [name for name in known if name.startswith(prefix) and "." not in name[len(prefix) :]]


def read_json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object from a file, or `missing` where that is given and the file is not there.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    if missing is not None and not path.exists():
        return missing
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: should hold a JSON object")
    return values
