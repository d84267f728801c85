"""A file that is cut into shards has the lines, the warnings and the faults that it has as a whole."""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from regard.errors import JobError, UserError
from regard.pipelines import shards
from regard.pipelines.shards import cut, read_shard
from regard.text.lines import read_lines

PIECES = [
    b"\n",
    b"\r\n",
    b"\r",
    b"a",
    b"word ",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\0",
    b"\xe2\x80\xa8",
    "é".encode(),
    b"\x85",
]
BYTES = st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)
IN_ONE_FOLDER = examples(suppress_health_check=[HealthCheck.function_scoped_fixture])


class Kept(logging.Handler):
    """Keeps what was said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def heard(lines: Iterator[str]) -> tuple[list[str], list[str]]:
    """Lines, and what was said of them; an error at the end counts as said."""
    log, kept, read = logging.getLogger("regard"), Kept(), []
    log.addHandler(kept)
    try:
        for line in lines:
            read.append(line)
    except UserError as error:
        kept.said.append(f"error: {error}")
    finally:
        log.removeHandler(kept)
    return read, kept.said


def in_shards(path: Path, size: int, bad: str) -> Iterator[str]:
    for shard in cut(path, size).shards:
        yield from read_shard(path, shard, str(path), bad)


@IN_ONE_FOLDER
@given(
    content=BYTES,
    size=st.integers(1, 7),
    block=st.sampled_from([1, 2, 3, 1 << 20]),
    bad=st.sampled_from(["error", "replace"]),
)
def test_shards_joined_are_the_whole_file(tmp_path: Path, content: bytes, size: int, block: int, bad: str) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK", block)
        assert heard(in_shards(path, size, bad)) == heard(read_lines(path, bad))


@IN_ONE_FOLDER
@given(content=BYTES, size=st.integers(1, 7))
def test_shards_follow_each_other_and_end_at_lines(tmp_path: Path, content: bytes, size: int) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    found = cut(path, size)
    assert b"".join(content[shard.begin : shard.end] for shard in found.shards) == content
    assert found.size == len(content)
    assert found.digest == hashlib.sha256(content).hexdigest()
    assert found.lines == len(content.removesuffix(b"\n").split(b"\n")) if content else not found.shards
    for number, shard in enumerate(found.shards):
        assert shard.number == number
        assert shard.first_line == 1 + number * size
        assert shard.lines == size or shard is found.shards[-1]
        assert content[: shard.end].endswith(b"\n") or shard is found.shards[-1]


def test_a_line_longer_than_a_block_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "BLOCK", 10)
    path = tmp_path / "in.txt"
    path.write_bytes(b"0123456789" * 5 + b"\n" + b"a" * 9 + b"\nb")
    assert [(shard.lines, shard.end - shard.begin) for shard in cut(path, 2).shards] == [(2, 61), (1, 1)]


def test_a_bad_byte_has_its_line_in_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\nb\nc\nd\xffe\nf\n")
    with pytest.raises(UserError, match=r"^mine, line 4: byte 0xFF is not UTF-8"):
        list(read_shard(path, cut(path, 3).shards[1], "mine"))


def test_what_is_packed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with pytest.raises(UserError, match="unpack it first"):
        cut(path, 1)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing: cannot be read: No such file"):
        cut(tmp_path / "nothing", 1)


@pytest.mark.parametrize("now", [b"a\nb\nC\nd\n", b"a\nb\nc\n", b"a\nb\n", b"", b"\na\nb\nc\nd\n"])
def test_a_file_that_has_changed_since_is_not_read(tmp_path: Path, now: bytes) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\nb\nc\nd\n")
    shard = cut(path, 2).shards[1]
    path.write_bytes(now)
    with pytest.raises(JobError, match="in, from line 3 on: is not what it was"):
        list(read_shard(path, shard, "in"))
