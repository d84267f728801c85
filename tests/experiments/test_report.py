"""The table of an experiment."""

from __future__ import annotations

import json
from pathlib import Path

from regard.experiments.report import markdown, write

COLUMNS = {"model": "", "parameters": ",", "minutes": ".1f"}
ROWS = [{"model": "a", "parameters": 1234567, "minutes": 2.25, "more": [1]}, {"model": "b", "minutes": 10}]


def test_numbers_are_written_by_their_formats_and_what_is_missing_is_a_dash() -> None:
    assert markdown(COLUMNS, ROWS) == (
        "| model | parameters | minutes |\n| --- | ---: | ---: |\n| a | 1,234,567 | 2.2 |\n| b | – | 10.0 |\n"
    )


def test_both_files_hold_the_same_and_all_values_are_in_the_second(tmp_path: Path) -> None:
    text = write(tmp_path, "A title", COLUMNS, ROWS, {"pairs": 12})
    assert (tmp_path / "results.md").read_bytes().decode("utf-8") == text
    assert text.startswith("# A title\n\n| model |")
    assert "- pairs: 12\n" in text
    values = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert values["rows"] == ROWS
    assert values["facts"]["pairs"] == 12
    assert {"regard", "torch", "threads"} <= values["facts"].keys()
