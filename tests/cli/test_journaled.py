"""`regard translate` from a file to a file, run in this process and interrupted in it."""

from __future__ import annotations

import gzip
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.small_translator import WORDS, command_line, write_model
from regard.cli import main
from regard.cli.progress import progress
from regard.pipelines import Translator
from regard.pipelines.journal import journal_of

LINES = [" ".join(WORDS[number % 7 : number % 7 + 1 + number % 5]) for number in range(60)]
UNLIKE = list(dict.fromkeys(LINES))

Regard = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Regard]:
    """The exit status of a command and what it said, or standard output where that is not a file."""
    with command_line(capfd) as command:

        def told(*words: object) -> tuple[int, str]:
            status, out, err = command(*words)
            return status, err if "--output" in words else out

        yield told


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8", newline="\n")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that is translated; from a file to a file in windows of ten."""
    asked: list[str] = []
    stream, carry_on = Translator.stream, "regard.pipelines.journal.Journal.carry_on.__defaults__"

    def listed(self: Translator, texts: Iterable[str], **options: Any) -> Iterator[Any]:
        given = list(texts)
        asked.extend(given)
        return stream(self, given, **options)

    monkeypatch.setattr(Translator, "stream", listed)
    monkeypatch.setattr(carry_on, (10, 100))
    return asked


def interrupt_at(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    stream = Translator.stream

    def interrupted(self: Translator, texts: Sequence[str], **options: Any) -> Iterator[Any]:
        if text in texts:
            raise KeyboardInterrupt
        return stream(self, texts, **options)

    monkeypatch.setattr(Translator, "stream", interrupted)


@pytest.mark.parametrize("options", [(), ("--scores",), ("--nbest", "3", "--beam", "5"), ("--beam", "1")])
def test_a_file_is_written_as_standard_output_is(
    run: Regard, model: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("\n".join(["", *UNLIKE]), encoding="utf-8")  # one window of the same texts both times
    _, streamed = run("translate", model, "--input", source, *options)
    assert streamed.count("\n") >= len(UNLIKE) + 1
    assert run("translate", model, "--input", source, "--output", output, *options)[0] == 0
    assert output.read_bytes().decode() == streamed


def test_a_line_is_translated_once_and_written_as_often_as_it_stands(
    run: Regard, model: Path, source: Path, tmp_path: Path, asked: list[str]
) -> None:
    output = tmp_path / "out"
    assert run("translate", model, "--input", source, "--output", output)[0] == 0
    assert asked == UNLIKE
    written = output.read_text("utf-8").removesuffix("\n").split("\n")
    assert len(written) == len(LINES)
    assert len(set(zip(LINES, written, strict=True))) == len(UNLIKE)


def test_interrupted_it_says_how_to_go_on_and_goes_on(
    run: Regard, model: Path, source: Path, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = tmp_path / "whole", tmp_path / "out"
    run("translate", model, "--input", source, "--output", whole)
    command = ("translate", model, "--input", source, "--output", output)
    with monkeypatch.context() as patch:
        interrupt_at(patch, UNLIKE[25])
        status, said = run(*command)
    done = LINES.index(UNLIKE[19]) + 1
    assert status == 130
    assert said.startswith(f"{output}: {done} lines are done; the same command goes on from there\n")
    assert said.endswith("\nregard: interrupted\n")
    assert not output.exists()
    asked.clear()
    assert run(*command, "--beam", "2") == (
        2,
        f"regard: {output}: was begun with beam = 4, not 2; give the same again to go on, --restart to begin anew, "
        "or choose another --output\n",
    )
    status, said = run(*command, "--must", "tea", "--scores")
    assert said.startswith(
        f"regard: {output}: was begun with must = (), not ('tea',) and with scores = False, not True;"
    )
    assert asked == []
    monkeypatch.setattr("regard.search.executors.kind", lambda: "another kind of CPU")
    status, said = run(*command)
    assert said.splitlines()[0] == f"going on at line {done + 1} of {output}"
    assert asked == UNLIKE[20:]
    assert output.read_bytes() == whole.read_bytes()
    assert not journal_of(output).exists()


@pytest.mark.parametrize(
    "words",
    [
        *(f"{verb} nowhere --input in.txt" for verb in ("translate", "translate --sample", "bulk", "generate")),
        *(f"{verb} nowhere --input in.txt" for verb in ("classify", "fill")),
        "score nowhere --source in.txt --target other.txt",
        "score nowhere --source other.txt --target in.txt",
        "evaluate nowhere --source other.txt --reference in.txt",
    ],
)
def test_what_is_read_is_not_written_over(
    run: Regard, source: Path, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, link = source.read_bytes(), tmp_path / "link"
    link.symlink_to(source)
    for output in (source, link, source.parent / ".." / source.parent.name / source.name):
        status, said = run(*words.split(), "--output", output)
        assert (status, f"--output {output}: is what is read, in.txt" in said) == (2, True)
    assert source.read_bytes() == text


def test_another_model_is_another_job(
    run: Regard, model: Path, source: Path, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output, copy = tmp_path / "out", tmp_path / "copy"
    copy.mkdir()
    for path in model.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    with monkeypatch.context() as patch:
        interrupt_at(patch, LINES[25])
        run("translate", model, "--input", source, "--output", output)
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    command = ("translate", copy, "--input", source, "--output", output)
    status, said = run(*command)
    assert status == 2
    assert "was begun with another model" in said
    asked.clear()
    assert run(*command, "--restart")[0] == 0
    assert asked == UNLIKE


def test_warnings_name_the_line_of_the_file(
    run: Regard, model: Path, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "in.gz", tmp_path / "out"
    said_of: list[str] = []
    stream = Translator.stream

    def warned(self: Translator, texts: Sequence[str], name: str = "", **options: Any) -> Iterator[Any]:
        for number, text in enumerate(texts, start=1):
            if text == "tea":
                logging.getLogger("regard").warning("%s, line %d: is about %s", name, number, "line 7 of 100%")
                said_of.append(text)
        return stream(self, texts, name=name, **options)

    monkeypatch.setattr(Translator, "stream", warned)
    source.write_bytes(gzip.compress(b"a\na\nb\na\n\xff\ntea\nb\ntea\n"))
    status, said = run("translate", model, "--input", source, "--output", output)
    assert status == 0
    assert [line for line in said.splitlines() if line.startswith("warning") and "end" not in line] == [
        f"warning: {source}, line 5: byte 0xFF is not UTF-8; read as U+FFFD",
        f"warning: {source}, line 6: is about line 7 of 100%",
    ]
    assert output.read_bytes().count(b"\n") == 8


@pytest.mark.parametrize("words", [("a dog",), ("--input", "{source}"), ("--input", "{pipe}", "--output", "{output}")])
def test_what_cannot_be_gone_on_with_has_no_journal(
    run: Regard, model: Path, source: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    pipe, output = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    given = [word.format(source=source, pipe=pipe, output=output) for word in words]
    with pytest.raises(SystemExit):
        main(["translate", str(model), *given, "--restart"])
    if str(pipe) not in given:
        return
    writer = threading.Thread(target=lambda: pipe.write_bytes(source.read_bytes()), daemon=True)
    writer.start()
    status, said = run("translate", model, *given)
    assert status == 0, said
    writer.join(10)
    assert output.read_bytes().count(b"\n") == len(LINES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out", "pipe"]


def test_a_device_is_written_as_it_comes(run: Regard, model: Path, source: Path) -> None:
    assert run("translate", model, "--input", source, "--output", "/dev/null")[0] == 0
    assert not journal_of(Path("/dev/null")).exists()


def test_the_time_that_is_left_counts_what_was_done_now(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 60.0, 200.0, 400.0])
    monkeypatch.setattr("regard.cli.progress.monotonic", lambda: next(times))
    with progress("translating", 10_000, 4_000) as show:
        show(4_000)
        show(5_000)
        show(10_000)
    assert [line.rstrip() for line in capsys.readouterr().err.splitlines()] == [
        "translating: 4,000 of 10,000 lines, 0 a second",
        "translating: 5,000 of 10,000 lines, 5 a second, 0:16:40 left",
        "translating: 10,000 of 10,000 lines, 15 a second, 0:00:00 left",
    ]
