"""What an experiment leaves to read: a table for people (`results.md`) and all its values (`results.json`)."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.text.lines import atomic_write
from regard.version import __version__

Row = Mapping[str, Any]


def markdown(columns: Mapping[str, str], rows: Sequence[Row]) -> str:
    """A Markdown table of some values of each row.

    `columns` gives the format of each value, as in `{"minutes": ".1f"}`; numbers stand at the right, and a value that
    a row lacks is a dash.
    """
    rules = ["---:" if style else "---" for style in columns.values()]
    cells = [[format(row[name], style) if name in row else "–" for name, style in columns.items()] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in ([*columns], rules, *cells))


def write(
    directory: Path, title: str, columns: Mapping[str, str], rows: Sequence[Row], facts: Mapping[str, Any]
) -> str:
    """Write both files; return the text of the first. `facts` are what holds for all rows, such as the data."""
    facts = {**facts, **machine()}
    about = "".join(f"- {name}: {value}\n" for name, value in facts.items())
    text = f"# {title}\n\n{markdown(columns, rows)}\n{about}"
    values = {"experiment": title, "facts": facts, "rows": [dict(row) for row in rows]}
    for name, content in (
        ("results.json", json.dumps(values, indent=2, ensure_ascii=False) + "\n"),
        ("results.md", text),
    ):
        with atomic_write(directory / name) as file:
            file.write(content.encode("utf-8"))
    return text


def machine() -> dict[str, Any]:
    """On what all of it was measured."""
    return {
        "regard": __version__,
        "torch": torch.__version__,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
    }
