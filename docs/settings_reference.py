"""An MkDocs hook: where a page says `<!-- settings -->`, all settings of a recipe are listed from the code itself."""

from __future__ import annotations

import inspect
import re
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from regard.settings import Settings, section_class

Settings.model_config["use_attribute_docstrings"] = True
"""For all that are defined from here on: what a field means stands in the docstring below it."""

MARK = "<!-- settings -->"
BOUNDS = {"gt": "above", "ge": "from", "lt": "below", "le": "to"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for each page."""
    from regard.runs.settings import RunSettings

    return markdown.replace(MARK, section(RunSettings, "")) if MARK in markdown else markdown


def section(settings: type[Settings], prefix: str) -> str:
    """A table of the keys of one section, followed by the sections inside it."""
    rows, inner = [], []
    for name, field in settings.model_fields.items():
        kind = section_class(field.annotation)
        if kind:
            inner.append((name, field, kind))
        else:
            rows.append(f"| `{name}` | {default(field)} | {values(field)} | {sentence(field.description)} |")
    table = ["| key | default | values | meaning |", "|---|---|---|---|", *rows] if rows else []
    parts = ["\n".join(table)]
    for name, field, kind in inner:
        about = [inspect.cleandoc(kind.__doc__ or ""), sentence(field.description), without(field)]
        text = " ".join(part for part in about if part)
        parts.append(f"### `{prefix}{name}` {{ #{prefix}{name} }}\n\n{text}\n\n{section(kind, f'{prefix}{name}.')}")
    return "\n\n".join(part for part in parts if part)


def without(field: FieldInfo) -> str:
    """What holds when a section is left out, where that differs from the defaults of its keys."""
    if not isinstance(field.default, Settings):
        return ""
    given = field.default.model_dump(exclude_unset=True)
    return f"Without this section: `{', '.join(f'{key}: {value}' for key, value in given.items())}`." if given else ""


def default(field: FieldInfo) -> str:
    """The default as it would stand in a recipe."""
    if field.is_required():
        return "*required*"
    if field.default is None or field.default is PydanticUndefined:
        return "unset"
    return f"`{yaml.safe_dump(_plain(field.default), default_flow_style=True).partition(chr(10))[0]}`"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def values(field: FieldInfo) -> str:
    """What may be given."""
    kind = " or ".join(_kinds(field.annotation))
    bounds = [
        f"{word} {value:,}"
        for constraint in field.metadata
        for name, word in BOUNDS.items()
        if (value := getattr(constraint, name, None)) is not None
    ]
    return ", ".join([kind, *bounds])


def _kinds(annotation: Any) -> list[str]:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return [" ".join(f"`{value}`" for value in inside)]
    if origin is tuple:
        return [f"list of {' or '.join(_kinds(inside[0]))}"]
    if origin in (Union, UnionType):
        return [kind for each in inside if each is not NoneType for kind in _kinds(each)]
    names = {int: "whole number", float: "number", bool: "`true` `false`", str: "text"}
    return [names.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())]


def sentence(text: str | None) -> str:
    """A docstring as one line of a table."""
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|")
