"""Strict typed settings: a YAML file, overridden by command-line options; an unknown key is an error.

Each class of settings lives beside the class it configures; this file holds what they share.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from reprlib import Repr
from typing import Any, Self

import yaml
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

    def to_yaml(self) -> str:
        """All settings as YAML that `read_yaml` reads back to the same."""
        return dump_yaml(self.model_dump(mode="json"))


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


class _Loader(yaml.SafeLoader):
    """YAML as people mean it, near YAML 1.2: `5e-4` is a number, `no` a language code, `010` and `2024-01-01` are text.

    A key that stands twice is an error.
    """


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back: text that would look like a number to it is quoted."""


_TAG = "tag:yaml.org,2002:"
_NUMBERS_AND_TRUTH = (
    ("bool", r"(?:[tT]rue|TRUE|[fF]alse|FALSE)$", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)$", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|nan))$",
        "-+0123456789.",
    ),
)
for _kind in (_Loader, _Dumper):
    _kind.yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in resolvers if tag in {_TAG + "null", _TAG + "merge"}]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for _name, _pattern, _letters in _NUMBERS_AND_TRUTH:
        _kind.add_implicit_resolver(_TAG + _name, re.compile(_pattern), list(_letters))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    written = [key for key, _ in node.value if key.tag != _TAG + "merge"]
    loader.flatten_mapping(node)
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key should be a word", problem_mark=key.start_mark)
    seen = set()
    for key in written:
        name = loader.construct_object(key)
        if name in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {name!r} stands twice", problem_mark=key.start_mark)
        seen.add(name)
    return {loader.construct_object(key): loader.construct_object(value, deep=True) for key, value in node.value}


# What stays under None refuses every other tag.
_KNOWN_TAGS = {None, *(_TAG + name for name in ("null", "bool", "int", "float", "str", "seq"))}
_Loader.yaml_constructors = {
    tag: construct for tag, construct in yaml.SafeLoader.yaml_constructors.items() if tag in _KNOWN_TAGS
}
_Loader.add_constructor(_TAG + "map", _mapping)


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Values as YAML that `read_yaml` reads back to the same."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def parse_yaml(text: str, origin: str) -> Any:
    """Parse YAML; a syntax error raises `UserError` with the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{origin}{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except (LookupError, ValueError, RecursionError) as error:
        # A number too long for Python, a tag that its value does not fit, brackets beyond count.
        raise UserError(f"{origin}: not valid YAML: {error}") from None


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


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """Turn `--model.d-model 256 --training.steps=9` into `{"model": {"d_model": 256}, "training": {"steps": 9}}`."""
    values: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        if not word.startswith("--"):
            raise UserError(
                f"{word!r} is not expected here; a recipe comes first, and settings are given as --section.key value"
            )
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
            if not isinstance(place, dict):
                raise UserError(f"--{name}: {section} was given the value {place!r} before; give one or the other")
        place[key] = parse_yaml(text, f"--{name}")
    return values


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over` laid on top, section by section."""
    merged = dict(base)
    for key, value in over.items():
        before = merged.get(key)
        merged[key] = merge(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged
