"""Interface texts of Home Assistant in some sixty languages, out of its wheel in the Python package registry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from regard.data.corpus import Pair
from regard.data.split import Split, split
from regard.errors import UserError

RELEASE = "2026.2.3"
WHEEL = f"homeassistant-{RELEASE}-py3-none-any.whl"
SHA256 = "8167820cac4b8defe895fd2c36ac23402a445d1fe6028e8cde24caabb935282c"
HELD_OUT = 1000
"""Pairs of dev and of test, where they are at most a tenth of the corpus each."""


def build(target: str, cache: Path) -> Split:
    """The corpus from English into `target`; the wheel is kept in `cache`."""
    pairs = catalogue_pairs(fetch(cache), target)
    return split(pairs, min(HELD_OUT, len(pairs) // 10))


def fetch(cache: Path) -> Path:
    """The wheel, downloaded by pip unless an intact one is there; it has its name only once it is complete."""
    wheel = cache / WHEEL
    if _is_intact(wheel):
        return wheel
    with TemporaryDirectory(prefix=".download-", dir=cache) as folder:
        command = [sys.executable, "-m", "pip", "download", f"homeassistant=={RELEASE}", "--dest", folder]
        command += ["--no-deps", "--python-version", "3.14", "--only-binary=:all:"]
        command += ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "2"]
        run = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
        downloaded = Path(folder) / WHEEL
        if run.returncode or not _is_intact(downloaded):
            reason = (run.stderr.strip().splitlines() or ["the file is damaged"])[-1].removeprefix("ERROR: ")
            raise UserError(
                f"pip could not download {WHEEL} (51 MB): {reason}; check the network, or put the file into {cache}"
            )
        downloaded.replace(wheel)
    return wheel


def _is_intact(wheel: Path) -> bool:
    if not wheel.is_file():
        return False
    with wheel.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == SHA256


def catalogue_pairs(wheel: Path, target: str) -> list[Pair]:
    """The distinct pairs of an English text and its translation, in the order of the catalogues.

    Texts belong together when they have the same place in the catalogues of the same component. White space is
    folded; empty texts and those left untranslated (both sides equal) are dropped. Raises `UserError` for a language
    that the wheel does not have.
    """
    with ZipFile(wheel) as archive:
        catalogues = sorted(name for name in archive.namelist() if "/translations/" in name and name.endswith(".json"))
        languages = Counter(Path(name).stem for name in catalogues)
        if target not in languages or target == "en":
            raise UserError(
                f"there are no strings for the language {target!r}; available (with the number of catalogues): "
                + ", ".join(f"{language} ({count})" for language, count in languages.most_common() if language != "en")
            )
        pairs: dict[Pair, None] = {}
        for name in catalogues:
            sibling = name.removesuffix("en.json") + f"{target}.json"
            if name.endswith("/en.json") and sibling in archive.NameToInfo:
                english = dict(texts(json.loads(archive.read(name))))
                translated = dict(texts(json.loads(archive.read(sibling))))
                pairs |= {(text, translated[key]): None for key, text in english.items() if key in translated}
    return [(source, text) for source, text in pairs if source and text and source != text]


def texts(tree: Any, key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each text of a nested catalogue, white space folded, with the path of keys that leads to it."""
    if isinstance(tree, dict):
        for name, branch in tree.items():
            yield from texts(branch, (*key, name))
    elif isinstance(tree, str):
        yield key, " ".join(tree.split())
