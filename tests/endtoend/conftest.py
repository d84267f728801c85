"""A small language pair that a small model can learn whole."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

NOUNS = {
    "dog": ("m", "Hund"), "cat": ("f", "Katze"), "horse": ("n", "Pferd"), "bird": ("m", "Vogel"),
    "mouse": ("f", "Maus"), "sheep": ("n", "Schaf"), "fish": ("m", "Fisch"), "cow": ("f", "Kuh"),
}  # fmt: skip
ADJECTIVES = {"big": "große", "small": "kleine", "old": "alte", "young": "junge", "red": "rote", "grey": "graue"}
VERBS = {"sees": "sieht", "likes": "mag", "hears": "hört", "follows": "verfolgt"}


def sentences() -> list[tuple[str, str]]:
    """9,216 sentences like "the big dog sees the old cat" and their German, with genders and cases, shuffled."""
    pairs = []
    for (noun, (gender, name)), adjective, verb, (
        other,
        (other_gender, other_name),
    ), other_adjective in itertools.product(NOUNS.items(), ADJECTIVES, VERBS, NOUNS.items(), ADJECTIVES):
        subject = f"{ {'m': 'der', 'f': 'die', 'n': 'das'}[gender] } {ADJECTIVES[adjective]} {name}"
        article = {"m": "den", "f": "die", "n": "das"}[other_gender]
        ending = "n" if other_gender == "m" else ""
        german = f"{subject} {VERBS[verb]} {article} {ADJECTIVES[other_adjective]}{ending} {other_name}"
        pairs.append((f"the {adjective} {noun} {verb} the {other_adjective} {other}", german))
    random.Random(7).shuffle(pairs)
    return pairs


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train (1,500 pairs), dev (60) and test (100) as `.en` and `.de` files."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = iter(sentences())
    for part, count in (("train", 1500), ("dev", 60), ("test", 100)):
        chosen = list(itertools.islice(pairs, count))
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in chosen)
            (folder / f"{part}.{language}").write_bytes(text.encode())
    return folder
