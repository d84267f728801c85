"""Learning gives the same vocabulary every time; a file is accepted only if learning could have made it."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.text.lines import read_lines
from regard.text.tokenizer import Tokenizer, TokenizerSettings
from regard.text.vocabulary import SMALLEST, Document, learn

KINDS = ("bpe", "wordpiece", "unigram")
each_kind = pytest.mark.parametrize("kind", KINDS)

# Nothing but ties: every word and nearly every pair of letters is as frequent as the others.
TIES = ["low lower newest widest", "".join(f"{a}{b}{c} " for a in "abcd" for b in "efgh" for c in "ijkl")]
CLASSIC = "low lower newest widest"


def learned(lines: list[str], kind: str = "bpe", size: int = 300) -> Tokenizer:
    return Tokenizer.learn(lines, TokenizerSettings.model_validate({"kind": kind, "size": size}))


def test_four_merges_on_nothing_but_ties() -> None:
    document = learn([CLASSIC], TokenizerSettings(size=SMALLEST + 4))
    assert document["model"]["merges"] == [["e", "s"], ["l", "o"], ["Ġ", "lo"], ["es", "t"]]
    assert [document["model"]["vocab"][piece] for piece in ("es", "lo", "Ġlo", "est")] == [260, 261, 262, 263]
    backwards = " ".join(reversed(CLASSIC.split()))
    assert learn([backwards], TokenizerSettings(size=SMALLEST + 4)) == document
    assert learn(CLASSIC.split(), TokenizerSettings(size=SMALLEST + 4)) == document


@each_kind
def test_order_and_source_of_the_lines_do_not_matter(kind: str, tmp_path: Path) -> None:
    words = [" ".join(random.Random(i).choices(TIES[1].split(), k=6)) for i in range(40)]
    expected = learned(words, kind).fingerprint
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{line}\n" for line in words), encoding="utf-8", newline="\n")
    assert learned(words[::-1], kind).fingerprint == expected
    settings = TokenizerSettings.model_validate({"kind": kind, "size": 300})
    assert Tokenizer.learn(read_lines(path), settings).fingerprint == expected
    assert learned(words * 2, kind).fingerprint != learned(words[:20], kind).fingerprint


def test_hash_seeds_threads_and_locale_do_not_matter(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    lines = [*TIES, "café Größe 你好", "a\u2028b", "a\rb"]
    corpus.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    script = """
import sys
from regard.text.lines import read_lines
from regard.text.tokenizer import Tokenizer, TokenizerSettings
for kind in ("bpe", "wordpiece", "unigram"):
    settings = TokenizerSettings(kind=kind, size=310)
    lines = list(read_lines(sys.argv[1]))[:: int(sys.argv[2])]
    tokenizer = Tokenizer.learn(lines, settings)
    tokenizer.save(f"{sys.argv[3]}.{kind}")
    sys.stdout.buffer.write(f"{tokenizer.encode(lines[::int(sys.argv[2])])}".encode())
"""
    circumstances: list[tuple[str, dict[str, str]]] = [
        ("1", {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}),
        ("-1", {"PYTHONHASHSEED": "1", "TOKENIZERS_PARALLELISM": "false"}),
        ("1", {"RAYON_NUM_THREADS": "5", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    ]
    outputs = []
    for number, (step, environment) in enumerate(circumstances):
        run = subprocess.run(
            [sys.executable, "-c", script, corpus, step, tmp_path / str(number)],
            env=os.environ | environment,
            capture_output=True,
            check=True,
        )
        files = [(tmp_path / f"{number}.{kind}").read_bytes() for kind in KINDS]
        outputs.append([run.stdout, *files])
    assert outputs[0] == outputs[1] == outputs[2]


@each_kind
def test_a_size_out_of_reach_gives_a_smaller_vocabulary_aloud(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="regard"):
        tokenizer = learned(TIES, kind, 500)
    assert SMALLEST < tokenizer.size < 500
    [ids] = tokenizer.encode([" ".join(TIES)])
    assert max(ids) < tokenizer.size
    assert len(caplog.messages) == 1
    assert "500" in caplog.messages[0]
    assert str(tokenizer.size) in caplog.messages[0]


@each_kind
def test_the_size_is_the_size(kind: str) -> None:
    for size in (SMALLEST, SMALLEST + 1, 275):
        assert learned(TIES * 3, kind, size).size == size


@each_kind
def test_a_size_below_the_bytes_is_refused(kind: str) -> None:
    for size in (SMALLEST - 1, 4, 1):
        with pytest.raises(UserError, match=f"smallest size is {SMALLEST}"):
            learned(TIES, kind, size)


@each_kind
@pytest.mark.parametrize("lines", [[], ["", ""]])
def test_an_empty_text_is_refused(kind: str, lines: list[str]) -> None:
    with pytest.raises(UserError, match="empty"):
        learned(lines, kind)


def test_the_size_has_to_be_chosen() -> None:
    with pytest.raises(ValueError, match="chosen"):
        Tokenizer.learn(TIES, TokenizerSettings())


@each_kind
def test_a_fault_in_the_corpus_is_told_as_it_is(kind: str) -> None:
    def lines() -> Iterator[str]:
        yield "good"
        raise UserError("corpus.txt, line 2: bad")

    with pytest.raises(UserError, match=r"corpus\.txt, line 2: bad"):
        Tokenizer.learn(lines(), TokenizerSettings.model_validate({"kind": kind, "size": 300}))


@each_kind
@pytest.mark.parametrize("changes", [{}, {"lowercase": True, "normalization": "nfkc"}])
def test_saved_and_loaded_is_the_same(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    settings = TokenizerSettings.model_validate({"kind": kind, "size": 300, **changes})
    tokenizer = Tokenizer.learn([*TIES, "Ünder a\u2028b \x85"], settings)
    path, again = tmp_path / "tokenizer.json", tmp_path / "again.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    loaded.save(again)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert (loaded.size, loaded.encode(TIES)) == (tokenizer.size, tokenizer.encode(TIES))
    assert again.read_bytes() == path.read_bytes()


@each_kind
def test_the_fingerprint_tells_tokenizers_apart_and_not_their_layout(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer = learned(TIES, kind, 275)
    tokenizer.save(path)
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps(dict(reversed(document.items()))), encoding="utf-8")
    assert Tokenizer.load(path).fingerprint == tokenizer.fingerprint
    lower = TokenizerSettings.model_validate({"kind": kind, "size": 275, "lowercase": True})
    others = [learned(TIES, kind, 274), Tokenizer.learn(TIES, lower), learned(TIES, KINDS[KINDS.index(kind) - 1], 275)]
    assert len({tokenizer.fingerprint, *(other.fingerprint for other in others)}) == 4


def _drop_a_byte(document: Document) -> None:
    vocab = document["model"]["vocab"]
    if isinstance(vocab, list):
        vocab.remove(next(entry for entry in vocab if entry[0] == "z"))
    else:
        del vocab["z"]


def _swap_control(document: Document) -> None:
    vocab = document["model"]["vocab"]
    if isinstance(vocab, list):
        vocab[0], vocab[5] = vocab[5], vocab[0]
    else:
        vocab["<pad>"], vocab["z"] = vocab["z"], vocab["<pad>"]


def _add_foreign_piece(document: Document) -> None:
    vocab = document["model"]["vocab"]
    if isinstance(vocab, list):
        vocab.append(["two words", -1.0])
    else:
        vocab["two words"] = len(vocab)


def _add_token(document: Document) -> None:
    document["added_tokens"].append(
        {
            "id": 2,
            "content": "</s>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    )


def _heavy_regex(document: Document) -> None:
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+$"


@each_kind
@pytest.mark.parametrize(
    "harm",
    [
        _drop_a_byte,
        _swap_control,
        _add_foreign_piece,
        _add_token,
        _heavy_regex,
        lambda document: document.pop("decoder"),
        lambda document: document["model"].pop("vocab"),
        lambda document: document["model"].update(vocab=7),
        lambda document: document["model"].update(vocab=[["a"], 3]),
        lambda document: document["model"].update(vocab={"a": None, "b": []}),
        lambda document: document["model"].update(dropout=0.5),
        lambda document: document["model"].update(merges=[["two words", "x"]]),
        lambda document: document["model"].update(type="Pickle"),
        lambda document: document.update(truncation={"max_length": 1}),
        lambda document: document.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ],
)
def test_a_harmed_file_is_refused(kind: str, harm: Callable[[Document], object], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    learned(TIES, kind).save(path)
    document = json.loads(path.read_bytes())
    harm(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        Tokenizer.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 100_000, b'{"model": null}', b'{"model": {"type": "BPE"}}'],
)
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Tokenizer.load(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            Tokenizer.load(path)
