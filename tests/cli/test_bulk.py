"""`regard bulk` writes what `regard translate` writes; here its shards are done in this process."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.small_translator import WORDS, command_line, write_model
from regard.cli.bulk import Beginning, Task
from regard.cli.journaled import circumstances
from regard.cli.searching import Searching
from regard.cli.translating import Translating
from regard.errors import UserError
from regard.pipelines import Translator
from regard.pipelines.cluster import Reports, Work, Worker
from regard.pipelines.journal import Terms
from regard.pipelines.parts import directory_of
from regard.pipelines.shards import Shard

LINES = ["", *(" ".join(WORDS[number % 7 : number % 7 + 1 + number % 5]) for number in range(40))]

Regard = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), 0)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("other"), 1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8", newline="\n")
    return path


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that were done, the last ones first."""
    done: list[int] = []

    def backwards(work: Work, shards: Sequence[Shard]) -> Reports:
        worker = Worker(work)
        for shard in reversed(shards):
            yield worker(shard)
            done.append(shard.number)

    monkeypatch.setattr("regard.pipelines.cluster.on_ray", lambda workers, address: backwards)
    return done


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Regard]:
    """The exit status of a command and what it said."""
    with command_line(capfd) as command:
        yield lambda *words: command(*words)[::2]


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--scores", "--precision", "float32"),
        ("--nbest", "3", "--beam", "5"),
        ("--beam", "1", "--prefix", "a ", "--no-repeat", "2"),
        ("--samples", "2", "--seed", "3", "--split", "always"),
        ("--with", "OTHER"),
        ("--align", "--scores"),
    ],
)
def test_the_output_is_that_of_translate(
    run: Regard, model: Path, other: Path, source: Path, done: list[int], options: tuple[str, ...]
) -> None:
    options = tuple(str(other) if word == "OTHER" else word for word in options)
    alone, many = source.with_name("alone"), source.with_name("many")
    status, said_alone = run("translate", model, "--input", source, "--output", alone, *options)
    assert status == 0
    status, said_many = run("bulk", model, "--input", source, "--output", many, "--shard-lines", 6, *options)
    assert status == 0
    assert done == [6, 5, 4, 3, 2, 1, 0]
    assert many.read_bytes() == alone.read_bytes()
    assert alone.read_bytes().count(b"\n") >= len(LINES)
    unfinished = [line for line in said_alone.splitlines() if "did not end" in line]
    assert [line for line in said_many.splitlines() if "did not end" in line] == unfinished
    assert sorted(path.name for path in source.parent.iterdir()) == ["alone", "in.txt", "many"]


def test_interrupted_it_goes_on_and_refuses_other_options(
    run: Regard, model: Path, source: Path, done: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = source.with_name("out")
    job = ("bulk", model, "--input", source, "--output", output, "--shard-lines", 6)
    stream = Translator.stream

    def interrupted(self: Translator, texts: Sequence[str], **options: Any) -> Iterator[Any]:
        if len(done) == 4:
            raise KeyboardInterrupt
        return stream(self, texts, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "stream", interrupted)
        status, said = run(*job)
    assert status == 130
    assert f"{output}: what is done is kept; the same command goes on from there" in said
    assert directory_of(output).exists()
    status, said = run(*job, "--beam", 2)
    assert status == 2
    assert f"{output}: was begun with beam = 4, not 2; give the same again" in said
    with source.open("ab") as file:
        file.write(b"more\n")
    status, said = run(*job)
    assert status == 2
    assert "with another input" in said
    source.write_bytes(source.read_bytes().removesuffix(b"more\n"))
    assert run(*job)[0] == 0
    assert done == [6, 5, 4, 3, 2, 1, 0]
    assert run("translate", model, "--input", source, "--output", source.with_name("alone"))[0] == 0
    assert output.read_bytes() == source.with_name("alone").read_bytes()


def test_warnings_have_the_numbers_of_lines_in_the_whole_file(
    run: Regard, model: Path, source: Path, done: list[int]
) -> None:
    lines = source.read_bytes().split(b"\n")
    lines[20] = b"a dog\xff"
    lines[30] = b"dog " * 200
    source.write_bytes(b"\n".join(lines))
    words = ("--input", source, "--output", source.with_name("out"), "--split", "never")
    said = run("bulk", model, *words, "--shard-lines", 9)[1]
    assert "in.txt, line 21: byte 0xFF is not UTF-8" in said
    assert "in.txt, line 31: " in said
    assert said.count("in.txt, line ") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--workers", "0"), "--workers"),
        (("--shard-lines", "0"), "--shard-lines"),
        (("--temperature", "1"), "it goes with --sample"),
        (("--beam", "0"), "beam"),
        (("--align", "--nbest", "2"), "--align goes with one translation"),
        (("--output", "/dev/null"), "from a file to a file"),
    ],
)
def test_impossible_wishes_are_refused(
    run: Regard, model: Path, source: Path, done: list[int], words: tuple[str, ...], message: str
) -> None:
    output = () if "--output" in words else ("--output", source.with_name("out"))
    status, said = run("bulk", model, "--input", source, *output, *words)
    assert status == 2
    assert message in said
    assert sorted(path.name for path in source.parent.iterdir()) == ["in.txt"]


def test_packed_input_is_to_be_unpacked(run: Regard, model: Path, source: Path, done: list[int]) -> None:
    source.write_bytes(gzip.compress(source.read_bytes()))
    status, said = run("bulk", model, "--input", source, "--output", source.with_name("out"))
    assert status == 2
    assert "unpack it first" in said


def test_a_worker_with_another_model_does_nothing(model: Path, other: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = Task(model, Translating(Searching(beam=2)), name="in")
    translator, _ = task.begin()
    terms = Terms(task.how.makeup(model, translator), circumstances(translator))
    (answer,) = Beginning(task, terms)()([LINES[5]], [1])
    assert answer.lines == tuple(translator.translate(LINES[5], beam=2))
    with pytest.raises(UserError, match=r"would translate otherwise, as the job was begun with another model; all"):
        Beginning(replace(task, model=other), terms)()
    Beginning(task, terms._replace(circumstances=terms.circumstances | {"cpu": "PDP-11"}))()
    assert "the job was begun with cpu = PDP-11, not" in caplog.text
