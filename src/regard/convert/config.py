"""A foreign `config.json`, read without overlooking anything.

A key is asked for, known to change no result, or a mistake: a value that nobody asked for may change the mathematics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from regard.errors import UserError

Value = TypeVar("Value")

_ABOUT_NAMES_AND_TRAINING = """
    model_type architectures _name_or_path name_or_path transformers_version torch_dtype dtype use_cache id2label
    label2id num_labels _num_labels problem_type finetuning_task task_specific_params tokenizer_class prefix
    bos_token_id pad_token_id eos_token_id sep_token_id decoder_start_token_id return_dict output_attentions
    output_hidden_states torchscript use_bfloat16 chunk_size_feed_forward is_encoder_decoder gradient_checkpointing
    initializer_range initializer_factor init_std layerdrop encoder_layerdrop decoder_layerdrop classifier_dropout
    classif_dropout attn_implementation _attn_implementation _commit_hash auto_map
"""
_ABOUT_SEARCH = """
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens max_new_tokens
"""
HARMLESS = frozenset(f"{_ABOUT_NAMES_AND_TRAINING} {_ABOUT_SEARCH}".split())
"""Keys of any architecture that change no result: about names, training and search."""

_REST: tuple[Any, ...] = (None, False, [], {}, "")
"""Values that switch nothing on."""


class Config:
    """The values of a configuration, and which of them were asked for.

    A value that is missing or of the wrong type raises `UserError` at once; what is not supported is collected, and
    `finish` lists all of it.
    """

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self.values, self.origin = values, origin
        self._asked: set[str] = set()
        self._problems: list[str] = []
        self._sections: list[Config] = []

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; without a default it must be there."""
        value = self._typed(key, default, "a whole number", int)
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._typed(key, default, "a number", int, float)
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._typed(key, default, "true or false", bool)
        return bool(value)

    def word(self, key: str, default: str | None = None) -> str:
        value = self._typed(key, default, "text", str)
        return str(value)

    def optional(self, key: str) -> int | None:
        """A whole number or nothing."""
        self._asked.add(key)
        return self.integer(key) if key in self else None

    def optional_number(self, key: str) -> float | None:
        self._asked.add(key)
        return self.number(key) if key in self else None

    def token(self, key: str, default: int | None = None) -> int | None:
        """The id of a control token; of several, the first."""
        self._asked.add(key)
        value = self.values.get(key, default)
        first = value[0] if isinstance(value, list) and value else value
        return first if isinstance(first, int) and not isinstance(first, bool) and first >= 0 else None

    def choice(self, key: str, table: Mapping[Any, Value], default: Any = None) -> Value:
        """What `table` has for the value; a value that is not in it is a problem."""
        value = self._value(key, default)
        if isinstance(value, str | int | float | bool | None) and value in table:
            return table[value]
        self._problems.append(f"{key} = {_short(value)} (supported: {', '.join(map(str, table))})")
        return next(iter(table.values()))

    def expect(self, key: str, *allowed: Any) -> None:
        """Present, it must have one of these values."""
        self._asked.add(key)
        if key in self.values and self.values[key] not in allowed:
            self._problems.append(f"{key} = {_short(self.values[key])}")

    def equal(self, *keys: str) -> None:
        """These must all have the same value."""
        self._asked.update(keys)
        values = [self.values[key] for key in keys if key in self]
        if any(value != values[0] for value in values):
            self._problems.append(f"{', '.join(f'{key} = {_short(self.values.get(key))}' for key in keys)} (not equal)")

    def section(self, key: str) -> Config | None:
        """A nested configuration, or None where there is none."""
        self._asked.add(key)
        if key not in self:
            return None
        if not isinstance(self.values[key], dict):
            raise UserError(f"{self.origin}: {key} should be a section, not {_short(self.values[key])}")
        nested = Config(self.values[key], f"{self.origin}: {key}")
        self._sections.append(nested)
        return nested

    def words(self, key: str) -> list[str]:
        """A list of words; empty where there is none."""
        self._asked.add(key)
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UserError(f"{self.origin}: {key} should be a list of words, not {_short(value)}")
        return list(value)

    def labels(self) -> tuple[str, ...]:
        """The names of classes in order of their numbers, from `id2label` or `num_labels`."""
        named = self.values.get("id2label")
        if isinstance(named, dict) and set(named) == set(map(str, range(len(named)))) and named:
            return tuple(str(named[str(number)]) for number in range(len(named)))
        count = self.integer("num_labels", 2)
        return tuple(f"LABEL_{number}" for number in range(min(max(count, 0), 2**16)))

    def refuse(self, problem: str) -> None:
        """Note what is not supported."""
        self._problems.append(problem)

    def finish(self, harmless: Collection[str] = ()) -> None:
        """Raise `UserError` with everything that is not supported, keys that nobody asked for included."""
        problems = self._all_problems(harmless)
        if problems:
            raise UserError(f"{self.origin}: not supported: {'; '.join(problems)}")

    def _all_problems(self, harmless: Collection[str]) -> list[str]:
        unknown = [
            f"{key} = {_short(value)}"
            for key, value in self.values.items()
            if key not in self._asked and key not in HARMLESS and key not in harmless and value not in _REST
        ]
        nested = [
            f"in {each.origin.rpartition(': ')[2]}: {problem}"
            for each in self._sections
            for problem in each._all_problems(harmless)
        ]
        return self._problems + unknown + nested

    def _value(self, key: str, default: Any) -> Any:
        self._asked.add(key)
        value = self.values.get(key)
        return default if value is None else value

    def _typed(self, key: str, default: Any, what: str, *kinds: type) -> Any:
        value = self._value(key, default)
        if value is None:
            raise UserError(f"{self.origin}: {key} is missing")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UserError(f"{self.origin}: {key} should be {what}, not {_short(value)}")
        return value


def label_names(labels: Sequence[str]) -> dict[str, Any]:
    """What `Config.labels` reads, and the same the other way round."""
    numbered = list(enumerate(labels))
    return {
        "id2label": {str(number): label for number, label in numbered},
        "label2id": {label: number for number, label in numbered},
    }


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
