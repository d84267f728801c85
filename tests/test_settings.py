"""Settings: YAML as people mean it, mistakes named with their place, options laid over a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from regard.errors import UserError
from regard.recipes import dump_yaml, merge, parse_overrides, parse_yaml, read_yaml
from regard.settings import Settings


class Inner(Settings):
    d_model: int = Field(8, gt=0)
    rate: float = 0.1


class Outer(Settings):
    model: Inner = Inner()
    language: str | None = None
    name: str = ""
    numbers: dict[str, float] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-4", 5e-4),
        ("1e5", 1e5),
        ("-1E+3", -1000.0),
        ("1.5e3", 1500.0),
        ("3.", 3.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("100_000", 100_000),
        ("0", 0),
        ("+7", 7),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("2024-13-45", "2024-13-45"),
        ("1e", "1e"),
        ("e5", "e5"),
        ("1.2.3", "1.2.3"),
        ("=", "="),
        ("'5e-4'", "5e-4"),
        ("[no, 5e-4]", ["no", 5e-4]),
    ],
)
def test_yaml_values_are_what_people_mean(text: str, value: Any) -> None:
    parsed = parse_yaml(text, "file")
    assert (parsed, type(parsed)) == (value, type(value))


def test_yaml_nan_is_a_number() -> None:
    assert math.isnan(parse_yaml(".nan", "file"))


def test_merge_keys_share_sections_and_what_is_written_wins() -> None:
    text = "a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n"
    assert parse_yaml(text, "file")["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' stands twice"),
        ("a:\n  b: 1\n  b: 1\n", 3, "the key 'b' stands twice"),
        ("a: 1\n  b: 2\n", 2, "mapping values are not allowed here"),
        ("a: [1\nb: 2\n", 2, "expected ',' or ']'"),
        ("ok: 1\na: {{x}: 2}\n", 2, "a key should be a word"),
        ("a: 1\nb: !!python/name:os.system x\n", 2, "could not determine a constructor"),
        ("a: *b\n", 1, "undefined alias"),
    ],
)
def test_a_fault_in_a_yaml_file_is_named_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}, line {line}: not valid YAML: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 5000, "9" * 5000, "!!int ''", "!!bool x", "!!float x", "!!timestamp x"])
def test_yaml_that_breaks_the_parser_is_an_error_of_the_file(text: str) -> None:
    with pytest.raises(UserError, match=r"^recipe.*not valid YAML"):
        parse_yaml(text, "recipe")


def test_files_that_hold_no_settings(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_yaml(path)
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read_yaml(path)
    path.write_bytes(b"- a\n- b\n")
    with pytest.raises(UserError, match="should hold settings like 'model:', not list"):
        read_yaml(path)
    path.write_bytes(b"# nothing yet\n")
    assert read_yaml(path) == {}
    path.write_bytes("\ufeffname: café\r\n".encode())
    assert read_yaml(path) == {"name": "café"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": {"d_modle": 4}}, "r.yaml: model.d_modle is not a setting; did you mean model.d_model?"),
        ({"modle": {}}, "r.yaml: modle is not a setting; did you mean model?"),
        ({"d_model": 4}, "r.yaml: d_model is not a setting; did you mean model.d_model?"),
        ({"rate": 4}, "r.yaml: rate is not a setting; did you mean model.rate?"),
        ({"zzz": 4}, "r.yaml: zzz is not a setting; known here: model, language, name, numbers"),
        ({"model": {"zzz": 4}}, "r.yaml: model.zzz is not a setting; known here: model.d_model, model.rate"),
        ({"model": {"d_model": 0}}, "r.yaml: model.d_model: input should be greater than 0 (got 0)"),
        ({"model": 5}, "r.yaml: model: input should be a valid dictionary or instance of Inner (got 5)"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_helps(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Outer.parse(values, "r.yaml")
    assert str(caught.value) == message


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        Outer.parse({"model": {"d_model": -1}, "nmae": "x"}, "r.yaml")
    assert "model.d_model" in str(caught.value)
    assert "did you mean name?" in str(caught.value)


def test_a_value_is_shown_in_bounds() -> None:
    """Ten anchors, each ten times the one before: ten thousand million letters when written out."""
    rows = [
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)),
    ]
    values = parse_yaml("\n".join(rows), "recipe")
    with pytest.raises(UserError, match="name: input should be a valid string") as error:
        Outer.parse({"name": values["a9"]}, "recipe")
    assert len(str(error.value)) < 500


def test_overrides() -> None:
    words = ["--model.d-model", "256", "--model.rate=5e-4", "--language", "no", "--name=a=b", "--numbers", "{x: -1}"]
    assert parse_overrides([*words, "--numbers.y", "-2"]) == {
        "model": {"d_model": 256, "rate": 5e-4},
        "language": "no",
        "name": "a=b",
        "numbers": {"x": -1, "y": -2},
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.d_model", "3"], "'model.d_model' is not expected here"),
        (["--model.d_model"], "--model.d_model needs a value"),
        (["--model.d_model", "--name", "x"], "--model.d_model needs a value"),
        (["--name", "[a"], "--name, line 1: not valid YAML"),
        (["--model", "5", "--model.d_model", "3"], "--model.d_model: model was given the value 5 before"),
    ],
)
def test_a_mistaken_option_is_named(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        parse_overrides(words)


def test_merge_goes_section_by_section_and_leaves_both_as_they_were() -> None:
    base, over = {"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 5}, "c": {"z": 6}}
    assert merge(base, over) == {"a": {"x": 1, "y": 5}, "b": 3, "c": {"z": 6}}
    assert base == {"a": {"x": 1, "y": 2}, "b": 3}
    assert over == {"a": {"y": 5}, "c": {"z": 6}}


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
traps = st.sampled_from(["no", "yes", "5e-4", "1e5", "010", "1:30", "2024-01-01", "~", "null", "true", ".5", "=", "<<"])


@given(texts | traps, st.none() | texts | traps, st.dictionaries(traps | texts, st.floats(allow_nan=False)))
def test_settings_survive_their_own_yaml(name: str, language: str | None, numbers: dict[str, float]) -> None:
    settings = Outer(name=name, language=language, numbers=numbers)
    assert Outer.parse(parse_yaml(dump_yaml(settings.model_dump(mode="json")), "own"), "own") == settings
