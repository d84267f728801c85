"""What a file holds is what is read, line for line, or a sentence that names file and line."""

from __future__ import annotations

import errno
import gzip
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import JobError, UserError
from regard.text.lines import (
    atomic_write,
    count_lines,
    encode_line,
    read_lines,
    read_pairs,
    read_stream,
    read_tsv,
    write_lines,
)

# Everything but LF at which str.splitlines, codecs or universal newlines end a line.
PYTHON_LINE_ENDS = ["\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r"]

line_texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"))
awkward_lines = st.lists(st.one_of(line_texts, st.sampled_from(["", "\r", "a\r\r", "\ufeff", "\ufeffa", "a\u2028b"])))


def file_of(folder: Path, content: bytes, name: str = "file.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("character", PYTHON_LINE_ENDS)
def test_only_a_line_feed_ends_a_line(tmp_path: Path, character: str) -> None:
    path = file_of(tmp_path, f"a{character}b\nc\n".encode())
    assert list(read_lines(path)) == [f"a{character}b", "c"]
    assert list(read_pairs(path, path)) == [(f"a{character}b",) * 2, ("c", "c")]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb", ["a\r", "b"]),
        (b"\ra\rb\r", ["\ra\rb\r"]),
        (" \u00a0a\u00a0 \t\n".encode(), [" \u00a0a\u00a0 \t"]),
    ],
)
def test_lines_of_a_file(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    assert list(read_lines(file_of(tmp_path, content))) == lines
    assert list(read_lines(file_of(tmp_path, gzip.compress(content)))) == lines


@pytest.mark.parametrize("content", [b"", b"\n", b"a", b"a\nb\n", b"\xff\xfe\n\0\nc", b"a\r\nb\x85c\r"])
def test_lines_are_counted_as_they_are_read_and_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    plain, packed = file_of(tmp_path, content), file_of(tmp_path, gzip.compress(content), "packed")
    assert count_lines(plain) == count_lines(packed)
    assert not caplog.messages
    assert count_lines(plain) == len(list(read_lines(plain, bad="replace")))


def test_gzip_is_told_by_content_and_may_have_several_members(tmp_path: Path) -> None:
    packed = gzip.compress("ä\nb".encode()) + gzip.compress(b"c\nd\n")
    assert list(read_lines(file_of(tmp_path, packed, "no-suffix"))) == ["ä", "bc", "d"]
    assert list(read_lines(file_of(tmp_path, b"plain\n", "plain.gz"))) == ["plain"]


@given(awkward_lines)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "file.txt"
    write_lines(path, lines)
    assert list(read_lines(path)) == lines
    assert path.read_bytes().count(b"\n") == len(lines)


@given(st.binary(max_size=60))
def test_any_bytes_give_their_lines_whole_or_replaced(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = file_of(tmp_path_factory.mktemp("bytes"), b"first\n" + content + b"\n")
    lines = list(read_lines(path, bad="replace"))
    raw = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    assert lines == ["first", *(line.decode("utf-8", "replace").replace("\0", "\ufffd") for line in raw)]
    if lines[1:] == [line.decode("utf-8", "ignore").replace("\0", "") for line in raw]:
        assert list(read_lines(path)) == lines
    else:
        with pytest.raises(UserError, match=f"{path.name}, line"):
            list(read_lines(path))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"good\ncaf\xe9\n", "line 2: byte 0xE9 is not UTF-8"),
        (b"\xff\xfeA\n", "line 1: byte 0xFF is not UTF-8"),
        (b"a\nb\n\xed\xa0\x80\n", "line 3: byte 0xED"),
        (b"a\nb\0c\n", "line 2: a NUL"),
        ("käse\n".encode("utf-16"), "line 1: is UTF-16"),
        (b"\xfe\xff" + "käse\n".encode("utf-16-be"), "line 1: is UTF-16"),
    ],
)
def test_bad_bytes_name_file_and_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = file_of(tmp_path, content)
    with pytest.raises(UserError, match=complaint) as caught:
        list(read_lines(path))
    assert str(path) in str(caught.value)


def test_replacing_costs_the_bad_lines_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = file_of(tmp_path, b"\xff\xfeA\ngood\na\0b\ncaf\xe9\nlast\n")
    with caplog.at_level(logging.WARNING, logger="regard"):
        lines = list(read_lines(path, bad="replace"))
    assert lines == ["\ufffd\ufffdA", "good", "a\ufffdb", "caf\ufffd", "last"]
    assert [message.split(":")[0] for message in caplog.messages] == [f"{path}, line {n}" for n in (1, 3, 4)]


def test_a_utf16_file_is_refused_even_when_replacing(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a\nb\n".encode("utf-16"))
    with pytest.raises(UserError, match="UTF-16"):
        list(read_lines(path, bad="replace"))


def test_a_byte_order_mark_is_skipped_aloud_and_only_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of(tmp_path, "\ufeffa\n\ufeffb\n".encode())
    with caplog.at_level(logging.WARNING, logger="regard"):
        assert list(read_lines(path)) == ["a", "\ufeffb"]
    assert len(caplog.messages) == 1
    assert f"{path}, line 1: the byte order mark" in caplog.messages[0]


@pytest.mark.parametrize("kept", [5, 20, -1, -8])
def test_a_cut_off_gzip_file_is_reported(tmp_path: Path, kept: int) -> None:
    packed = gzip.compress("\n".join(map(str, range(1000))).encode())
    path = file_of(tmp_path, packed[:kept])
    for read in (count_lines, lambda path: list(read_lines(path))):
        with pytest.raises(UserError, match="damaged or cut off"):
            read(path)


def test_gzip_with_flipped_bytes_is_reported(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("\n".join(map(str, range(1000))).encode()))
    packed[200:240] = bytes(40)
    with pytest.raises(UserError, match=r"damaged|is not UTF-8|NUL"):
        list(read_lines(file_of(tmp_path, bytes(packed))))


def test_what_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UserError, match="cannot be read") as caught:
            list(read_lines(path))
        assert str(path) in str(caught.value)


def test_an_unreadable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"secret\.txt: cannot be read: Permission denied"):
        list(read_lines("secret.txt"))


def test_a_stream_gives_each_line_as_it_arrives() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as sender:
        lines = read_stream(stream, "stdin")
        for text in ("eins", "zwei", "drei"):
            sender.write(f"{text}\n".encode())
            assert next(lines) == text
        sender.write(b"last")
        sender.close()
        assert list(lines) == ["last"]


def test_a_stream_is_named_in_messages() -> None:
    with pytest.raises(UserError, match="standard input, line 2: byte 0xFF"):
        list(read_stream([b"a\n", b"\xff\n"], "standard input"))


def test_pairs_stop_with_both_counts(tmp_path: Path) -> None:
    three, five = file_of(tmp_path, b"1\n2\n3\n", "three"), file_of(tmp_path, b"1\n2\n3\n4\n5", "five")
    for source, target, complaint in (
        (three, five, r"three has 3 lines and .*five has 5"),
        (five, three, r"five has 5 lines and .*three has 3"),
    ):
        pairs = read_pairs(source, target)
        assert [next(pairs) for _ in range(3)] == [("1", "1"), ("2", "2"), ("3", "3")]
        with pytest.raises(UserError, match=complaint):
            next(pairs)


def test_pairs_keep_empty_lines(tmp_path: Path) -> None:
    source, target = file_of(tmp_path, b"\na\n", "s"), file_of(tmp_path, b"x\n\n", "t")
    assert list(read_pairs(source, target)) == [("", "x"), ("a", "")]


def test_tsv_has_two_columns(tmp_path: Path) -> None:
    path = file_of(tmp_path, "eins \t one\r\n\t\nzwei\u2028\ttwo".encode())
    assert list(read_tsv(path)) == [("eins ", " one"), ("", ""), ("zwei\u2028", "two")]


@pytest.mark.parametrize(("line", "columns"), [(b"alone", 1), (b"a\tb\tc", 3), (b"", 1)])
def test_tsv_with_other_columns_names_the_line(tmp_path: Path, line: bytes, columns: int) -> None:
    path = file_of(tmp_path, b"a\tb\n" + line + b"\n")
    with pytest.raises(UserError, match=rf"line 2: {columns} columns"):
        list(read_tsv(path))


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\ud800b"])
def test_what_a_line_cannot_hold_is_refused_and_the_old_file_stays(tmp_path: Path, text: str) -> None:
    path = file_of(tmp_path, b"old\n")
    with pytest.raises(UserError, match=r"file\.txt, line 2: .* holds"):
        write_lines(path, ["good", text])
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_encode_line_gives_bytes() -> None:
    assert encode_line("Größe") == b"Gr\xc3\xb6\xc3\x9fe\n"
    assert encode_line("a\r") == b"a\r\r\n"


def test_a_file_may_be_rewritten_from_itself(tmp_path: Path) -> None:
    path = file_of(tmp_path, b"a\r\nb")
    write_lines(path, read_lines(path))
    assert path.read_bytes() == b"a\nb\n"


def test_nothing_shows_until_the_block_ends(tmp_path: Path) -> None:
    path = file_of(tmp_path, b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        assert all(other.suffix == ".tmp" for other in tmp_path.iterdir() if other != path)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError, UserError("bad line")])
def test_a_broken_block_leaves_the_old_file_alone(tmp_path: Path, interruption: BaseException) -> None:
    path = file_of(tmp_path, b"old")

    def write_half() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise interruption

    with pytest.raises((KeyboardInterrupt, ValueError, UserError)):
        write_half()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_failed_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    path = file_of(tmp_path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JobError, match=r"file\.txt: could not be written"):
        write_lines(path, ["new"])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """As are devices: a toolkit run by root must not put a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_lines(pipe, ["text"])
        assert os.read(reader, 100) == b"text\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "file.txt", tmp_path):
        with pytest.raises(UserError, match="cannot be written") as caught:
            write_lines(path, ["text"])
        assert str(path) in str(caught.value)


def test_a_link_stays_a_link_and_modes_follow_the_umask(tmp_path: Path) -> None:
    real, link, plain = tmp_path / "real.txt", tmp_path / "link.txt", tmp_path / "plain.txt"
    link.symlink_to(real)
    plain.touch()
    write_lines(link, ["text"])
    assert link.is_symlink()
    assert real.read_bytes() == b"text\n"
    assert stat.S_IMODE(real.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_reading_and_writing_stream(tmp_path: Path) -> None:
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"line\n"

    lines = read_stream(endless(), "endless")
    assert [next(lines) for _ in range(3)] == ["line"] * 3
    assert len(taken) == 3


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    text = "café Größe 你好"
    source, copy = file_of(tmp_path, f"{text}\n".encode()), tmp_path / "copy.txt"
    script = (
        "import sys; from regard.text.lines import *\n"
        "write_lines(sys.argv[2], read_lines(sys.argv[1]))\n"
        "sys.stdout.buffer.writelines(map(encode_line, read_stream(sys.stdin.buffer, 'stdin')))"
    )
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", script, source, copy],
        input=f"{text}\n".encode(),
        env=os.environ | locale,
        capture_output=True,
        check=True,
    )
    assert copy.read_bytes() == run.stdout == f"{text}\n".encode()
