"""Recipes: settings as people write them, in a YAML file and as options of the command line that change it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from regard.errors import UserError


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
