"""Strict typed settings: a YAML file, overridden by command-line options; an unknown key is an error.

Each class of settings lives beside the class it configures; this file holds what they share.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from regard.errors import UserError


class Settings(BaseModel):
    """Base of all settings: frozen, typed, and without tolerance for unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        protected_namespaces=(),
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any], origin: str) -> Self:
        """Validate `values`; a mistake raises `UserError` naming `origin` (a file or "command line") and the key."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise UserError("; ".join(_sentence(cls, detail, origin) for detail in error.errors())) from None

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _sentence(root: type[Settings], detail: Any, origin: str) -> str:
    path = [str(part) for part in detail["loc"]]
    key = ".".join(path)
    if detail["type"] == "extra_forbidden":
        known = _keys(root)
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.6) or [
            name for name in known if name.rsplit(".", 1)[-1] == path[-1]
        ]
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(_siblings(known, path))}"
        return f"{origin}: {key} is not a setting; {hint}"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    given = "" if detail["type"] == "missing" or isinstance(detail["input"], dict) else f" (got {detail['input']!r})"
    return f"{origin}: {key + ': ' if key else ''}{message}{given}"


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


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: `5e-4` is a number, `no` is a language code, a repeated key is an error."""


_Loader.yaml_implicit_resolvers = {
    letter: [
        (tag, pattern) for tag, pattern in resolvers if tag not in {"tag:yaml.org,2002:float", "tag:yaml.org,2002:bool"}
    ]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\.\d[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.(?:inf|nan))$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:true|false)$", re.IGNORECASE), list("tTfF"))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for position, key in enumerate(keys):
        if key in keys[:position]:
            line = node.value[position][0].start_mark.line + 1
            raise yaml.MarkedYAMLError(
                problem=f"the key {key!r} stands twice",
                problem_mark=node.value[position][0].start_mark,
                note=str(line),
            )
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True) for key, value in node.value
    }


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse_yaml(text: str, origin: str) -> Any:
    """Parse YAML; a syntax error raises `UserError` with the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{origin}{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None
    values = parse_yaml(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: should hold settings like 'model:', not {type(values).__name__}")
    return values


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """Turn `--model.d-model 256 --training.steps=9` into `{"model": {"d_model": 256}, "training": {"steps": 9}}`."""
    values: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("--"):
            raise UserError(f"{word!r} is not expected here; settings are given as --section.key value")
        name, equals, text = word[2:].partition("=")
        if not equals:
            following = next(words, None)
            if following is None or following.startswith("--"):
                raise UserError(f"--{name} needs a value, as in --{name} VALUE")
            text = following
        *sections, key = name.replace("-", "_").split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = parse_yaml(text, f"--{name}")
    return values


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over` laid on top, section by section."""
    merged = dict(base)
    for key, value in over.items():
        before = merged.get(key)
        merged[key] = merge(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged
