"""A file answered shard by shard: the same output whoever does them, however often, and whatever interrupts it."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import JobError, UserError
from regard.model.settings import ModelSettings
from regard.model.transformer import EncoderDecoder
from regard.pipelines import Translator, write_directory
from regard.pipelines.cluster import ATTEMPTS, Report, Reports, Runner, Work, Worker, carry_on, in_this_process, on_ray
from regard.pipelines.journal import Answer, Answerer
from regard.pipelines.parts import directory_of, parts
from regard.pipelines.shards import Shard, cut
from regard.search.settings import SearchSettings
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

JOB: dict[str, object] = {"model": "0123", "beam": 4, "with": []}
HERE: dict[str, object] = {"torch": "2.13"}
LINES = [f"line {number % 13}" for number in range(60)]
WHOLE = "".join(f"{line.upper()}\n" for line in LINES)
SIZE = 7
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray (pip install 'regard[ray]')")


class StopError(Exception):
    """Ends a job from within."""


class Answers:
    """Answers a text by itself in capitals, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.numbers: list[int] = []
        self.begun = 0

    def begin(self) -> Answerer:
        self.begun += 1
        return self._answer

    def _answer(self, texts: list[str], numbers: list[int]) -> list[Answer]:
        self.asked.append(texts)
        self.numbers += numbers
        return [Answer((text.upper(),), finished=text != "line 3") for text in texts]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8", newline="\n")
    return path


def carry_out(
    source: Path,
    begin: Callable[[], Answerer],
    run: Runner = in_this_process,
    job: dict[str, object] = JOB,
    here: dict[str, object] = HERE,
    numbered: bool = False,
    restart: bool = False,
) -> tuple[list[int], int]:
    """The whole job from `source` to `out` beside it: how many lines were done when, and how many are unfinished."""
    output = source.with_name("out")
    shards = cut(source, SIZE).shards
    with parts(output, job, here, restart) as done:
        counts = list(carry_on(Work(source, "in", done, begin, numbered), shards, run))
        return counts, done.join(shards, output)


def stopping(after: int) -> Runner:
    """Does so many shards, the last ones first, and then ends the job."""

    def run(work: Work, shards: Sequence[Shard]) -> Reports:
        yield from map(Worker(work), list(reversed(shards))[:after])
        raise StopError

    return run


def stopped(source: Path, after: int) -> None:
    with pytest.raises(StopError):
        carry_out(source, Answers().begin, stopping(after))
    assert not source.with_name("out").exists()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def out(source: Path) -> str:
    return source.with_name("out").read_bytes().decode()


def test_the_output_is_in_order_and_nothing_else_is_left(source: Path) -> None:
    answers = Answers()
    counts, unfinished = carry_out(source, answers.begin)
    assert counts == [0, 7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert out(source) == WHOLE
    assert unfinished == LINES.count("line 3")
    assert answers.begun == 1
    assert names(source.parent) == ["in.txt", "out"]


def test_a_text_is_answered_once_a_shard_by_the_line_where_it_stands_first(source: Path) -> None:
    source.write_text("a\nb\na\na\nb\na\nc\na\n", encoding="utf-8")
    answers = Answers()
    carry_out(source, answers.begin)
    assert answers.asked == [["a", "b", "c"], ["a"]]
    assert answers.numbers == [1, 2, 7, 8]
    assert out(source) == "A\nB\nA\nA\nB\nA\nC\nA\n"


def test_lines_may_have_their_numbers_in_the_whole_file(source: Path) -> None:
    carry_out(source, lambda: lambda texts, _: [Answer(("x", "y")) for _ in texts], numbered=True)
    assert out(source).split("\n")[-5:-1] == ["59\tx", "59\ty", "60\tx", "60\ty"]


def test_an_empty_file_has_an_empty_output(source: Path) -> None:
    source.write_bytes(b"")
    assert carry_out(source, Answers().begin) == ([0], 0)
    assert out(source) == ""


@pytest.mark.parametrize("after", [1, 4, 9])
def test_what_is_done_is_not_done_again(source: Path, after: int) -> None:
    stopped(source, after)
    answers = Answers()
    counts, unfinished = carry_out(source, answers.begin)
    assert counts[0] == 60 - 7 * (9 - after)
    assert len(answers.asked) == 9 - after
    assert answers.begun == (after < 9)
    assert out(source) == WHOLE
    assert unfinished == LINES.count("line 3")
    assert names(source.parent) == ["in.txt", "out"]


def test_stopped_before_anything_is_done_nothing_is_left(source: Path) -> None:
    stopped(source, 0)
    assert names(source.parent) == ["in.txt"]


def test_a_shard_that_is_given_out_twice_is_done_once(source: Path) -> None:
    def twice(work: Work, shards: Sequence[Shard]) -> Reports:
        first, second = Worker(work), Worker(work)
        for shard in shards:
            second(shard)
            yield first(shard)

    answers = Answers()
    carry_out(source, answers.begin, twice)
    assert len(answers.asked) == 9
    assert answers.begun == 1
    assert out(source) == WHOLE


def test_two_workers_with_one_shard_write_the_same_bytes(source: Path) -> None:
    (shard,) = cut(source, 100).shards
    with parts(source.with_name("out"), JOB, HERE) as done:
        work = Work(source, "in", done, Answers().begin)
        kept = []
        for _ in range(2):
            Worker(work)._do(shard)
            kept.append(done.read(shard))
        assert kept[0] == kept[1] == (WHOLE.encode(), LINES.count("line 3"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beam": 5}, "with beam = 4, not 5;"),
        ({"model": "4567"}, "with another model;"),
        ({"input": "60 bytes"}, "with another input;"),
    ],
)
def test_another_job_is_refused_unless_it_begins_anew(source: Path, change: dict[str, object], words: str) -> None:
    stopped(source, 3)
    with pytest.raises(UserError, match=rf"out: was begun .*{words}.*--restart to begin anew"):
        carry_out(source, Answers().begin, job=JOB | change)
    answers = Answers()
    carry_out(source, answers.begin, job=JOB | change, restart=True)
    assert len(answers.asked) == 9
    assert names(source.parent) == ["in.txt", "out"]


def test_refused_what_is_done_stays(source: Path) -> None:
    stopped(source, 3)
    before = names(directory_of(source.with_name("out")))
    with pytest.raises(UserError):
        carry_out(source, Answers().begin, job={"beam": 1})
    assert names(directory_of(source.with_name("out"))) == before


def test_other_circumstances_are_warned_of(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped(source, 3)
    with caplog.at_level(logging.WARNING, "regard"):
        carry_out(source, Answers().begin, here={"torch": "2.14"})
    assert "with torch = 2.13, not 2.14: what is to come may be rounded otherwise" in caplog.text


def test_what_another_job_still_writes_is_not_taken(source: Path) -> None:
    """As by a worker on a machine that has not heard that the job was begun anew with another beam."""
    (shard,) = cut(source, 100).shards
    output = source.with_name("out")
    stopped(source, 3)
    with suppress(StopError), parts(output, JOB, HERE) as late:
        raise StopError
    with parts(output, JOB | {"beam": 1}, HERE, restart=True) as done:
        late.write(shard, b"old", 0)
        assert not done.has(shard)
        assert done.done([shard]) == set()
        done.write(shard, b"new", 0)
        assert done.read(shard) == (b"new", 0)
    assert names(source.parent) == ["in.txt"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks of files")
def test_a_second_process_is_refused(source: Path) -> None:
    output = source.with_name("out")
    with parts(output, JOB, HERE), pytest.raises(UserError, match=r"another process is writing .*another --output"):
        carry_out(source, Answers().begin)
    assert names(source.parent) == ["in.txt"]


def part_of(source: Path, number: int) -> Path:
    (path,) = directory_of(source.with_name("out")).glob(f"*-{number:08}")
    return path


@pytest.mark.parametrize("damage", [b"", b"{}\nLINE", b"nothing", b"[1]\n"])
def test_a_damaged_part_is_never_written(source: Path, damage: bytes) -> None:
    stopped(source, 3)
    path = part_of(source, 7)
    path.write_bytes(damage or path.read_bytes()[:-2])
    with pytest.raises(JobError, match="00000007: is damaged; remove it and run again"):
        carry_out(source, Answers().begin)
    assert not source.with_name("out").exists()
    path.unlink()
    assert carry_out(source, Answers().begin)[0] == [53, 60]
    assert out(source) == WHOLE


def test_a_part_that_this_machine_does_not_see_is_named(source: Path) -> None:
    def elsewhere(work: Work, shards: Sequence[Shard]) -> Reports:
        yield from map(Worker(work), shards[:-1])
        yield Report(shards[-1].number)

    with pytest.raises(JobError, match="00000008: is missing; --output should be in a folder that all machines see"):
        carry_out(source, Answers().begin, elsewhere)
    assert carry_out(source, Answers().begin)[0] == [56, 60]


def test_the_record_of_a_job_is_plain(source: Path) -> None:
    stopped(source, 3)
    record = directory_of(source.with_name("out")) / "job.json"
    assert json.loads(record.read_bytes()) == {
        "job": {"format": "1", "model": "0123", "beam": "4", "with": "[]"},
        "circumstances": {"torch": "2.13"},
    }
    record.write_bytes(b'{"job": 1}')
    with pytest.raises(UserError, match="is damaged; begin anew with --restart"):
        carry_out(source, Answers().begin)
    record.unlink()
    assert carry_out(source, Answers().begin)[0][0] == 0


def test_warnings_come_from_workers_with_the_number_of_the_line(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = source.read_bytes().split(b"\n")
    raw[22] = b"line\xff"
    source.write_bytes(b"\n".join(raw))
    with caplog.at_level(logging.WARNING, "regard"):
        carry_out(source, Answers().begin)
    assert [record.getMessage() for record in caplog.records] == [
        "in, line 23: byte 0xFF is not UTF-8; read as U+FFFD",
    ]
    assert out(source).split("\n")[22] == "LINE\ufffd"


@pytest.mark.parametrize("error", [UserError, JobError])
def test_what_a_worker_cannot_do_ends_the_job_in_its_words(source: Path, error: type[Exception]) -> None:
    def begin() -> Answerer:
        raise error("there is no model here")

    with pytest.raises(error, match=r"^there is no model here$"):
        carry_out(source, begin)
    assert names(source.parent) == ["in.txt"]


def test_lines_that_workers_die_of_are_named(source: Path) -> None:
    def die(texts: list[str], numbers: list[int]) -> list[Answer]:
        if numbers[0] == 8:
            raise StopError
        return Answers().begin()(texts, numbers)

    def again(work: Work, shards: Sequence[Shard]) -> Reports:
        """As Ray does with workers that die."""
        for shard in shards:
            for _ in range(ATTEMPTS):
                try:
                    yield Worker(work)(shard)
                    break
                except StopError:
                    continue
            else:
                yield Worker(work)(shard)

    with pytest.raises(JobError, match=rf"^in, lines 8 to 14: {ATTEMPTS} workers were lost with them"):
        carry_out(source, lambda: die, again)
    assert carry_out(source, Answers().begin)[0][0] == 7  # counted anew
    assert out(source) == WHOLE


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.data", raising=False)
    with pytest.raises(UserError, match=r"pip install 'regard\[ray\]'"):
        on_ray(2)


@needs_ray
def test_two_workers_of_which_one_dies_after_a_driver_that_died(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answerer stands in here, so that Ray hands it over as a value: workers cannot import this file."""
    monkeypatch.setenv("RAY_worker_niceness", "0")  # or else they starve where a machine is busy
    model, marker = str(tmp_path / "model"), str(tmp_path / "died")
    write_model(Path(model))

    def begin() -> Any:
        import os
        from pathlib import Path

        from regard.pipelines import Translator
        from regard.pipelines.journal import Answer

        translator = Translator.load(model, "cpu")

        def answer(texts: list[str], numbers: list[int]) -> list[Any]:
            if numbers[0] == 8 and not Path(marker).exists():
                Path(marker).touch()
                os._exit(1)
            return [Answer((text,)) for text in translator.translate(texts)]

        return answer

    with pytest.raises(StopError):
        carry_out(source, begin, stopping(4))
    counts, _ = carry_out(source, begin, on_ray(2))
    assert (counts[0], counts[-1], len(counts)) == (25, 60, 6)
    assert Path(marker).exists()
    expected = Translator.load(model, "cpu").translate(LINES)
    assert len(set(expected)) > 5
    assert out(source) == "".join(f"{line}\n" for line in expected)
    assert names(tmp_path) == ["died", "in.txt", "model", "out"]


def write_model(directory: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.learn(LINES, TokenizerSettings(size=280))
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, max_length=64)
    model = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    pair, search = TokenizerPair(tokenizer, tokenizer), SearchSettings(extra_tokens=5, retry=False)
    write_directory(directory, Translator(model, pair, search), "# A card\n")
