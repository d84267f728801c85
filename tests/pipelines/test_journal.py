"""A job from file to file: interrupted anywhere it goes on, and what it writes is what it would have written."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from regard.errors import JobError, UserError
from regard.pipelines.journal import Answer, draft_of, journal, journal_of
from regard.text.lines import atomic_write

JOB: dict[str, object] = {"model": "0123abcd", "beam": 4, "alpha": 0.6}
HERE: dict[str, object] = {"torch": "2.13", "workers": 2}
LINES = [f"line {number}" for number in (1, 2, 3, 1, 4, 5, 5, 2, 6, 7, 1, 8, 9, 10, 3, 11)]
SIZE, MOST = 3, 6


class StopError(Exception):
    """Ends a job from within."""


class Answers:
    """Answers a text by itself in capitals, and remembers what it was asked."""

    def __init__(self, stop: int | None = None, deed: Callable[[], None] | None = None) -> None:
        self.asked: list[str] = []
        self.numbers: list[int] = []
        self.windows: list[list[str]] = []
        self._stop, self._deed = stop, deed

    def __call__(self, texts: list[str], numbers: list[int]) -> Iterator[Answer]:
        self.windows.append(texts)
        self.numbers += numbers
        for text in texts:
            if len(self.asked) == self._stop:
                (self._deed or self._raise)()
            self.asked.append(text)
            yield Answer((text.upper(), f"{text}\nof {texts[0]}"), finished=not text.endswith("3"))

    def _raise(self) -> None:
        raise StopError


def carry_out(
    output: Path,
    lines: Iterable[str] = LINES,
    answers: Answers | None = None,
    job: dict[str, object] = JOB,
    here: dict[str, object] = HERE,
    **options: bool,
) -> Answers:
    """The whole job, to the end where nothing stops it."""
    answers = answers or Answers()
    with journal(output, job, here, **options) as record:
        for _ in record.carry_on(lines, answers, "in.txt", SIZE, MOST):
            pass
        with atomic_write(output, draft_of(output)) as file:
            for answer in record.answers():
                file.write(f"{answer}\n".encode())
    return answers


def stopped(output: Path, after: int, lines: Iterable[str] = LINES, error: type[BaseException] = StopError) -> Answers:
    """A job that ended when it had answered so many texts."""

    def end() -> None:
        raise error

    answers = Answers(after, end)
    with pytest.raises(error):
        carry_out(output, lines, answers)
    return answers


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("unbroken") / "out"
    carry_out(output)
    return output.read_text("utf-8")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_text_is_asked_about_once_and_each_line_is_answered(tmp_path: Path) -> None:
    answers = carry_out(tmp_path / "out")
    assert answers.asked == list(dict.fromkeys(LINES))
    assert answers.numbers == [LINES.index(text) + 1 for text in answers.asked]
    written = (tmp_path / "out").read_text("utf-8").splitlines()
    assert [line.split("'")[1] for line in written] == [text.upper() for text in LINES]
    assert ["finished=False" in line for line in written] == [text.endswith("3") for text in LINES]
    assert names(tmp_path) == ["out"]


def test_windows_hold_so_many_new_texts_and_at_most_so_many_lines(tmp_path: Path) -> None:
    lines = ["a", "b", "a", "c", "d", "a", "a", "a", "a", "a", "a", "a", "e", "f"]
    assert carry_out(tmp_path / "out", lines).windows == [["a", "b", "c"], ["d"], ["e", "f"]]


@pytest.mark.parametrize("after", range(11))
def test_interrupted_anywhere_it_asks_what_it_would_have_asked(tmp_path: Path, unbroken: str, after: int) -> None:
    output = tmp_path / "out"
    first = stopped(output, after)
    assert not output.exists()
    second = carry_out(output)
    assert output.read_text("utf-8") == unbroken
    # The same windows, of which only that is made again which was not whole.
    windows = first.windows + second.windows
    assert [window for place, window in enumerate(windows) if window not in windows[:place]] == carry_out(
        tmp_path / "again"
    ).windows
    assert len(second.asked) == 11 - after // SIZE * SIZE
    assert names(tmp_path) == ["again", "out"]


@examples(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(
    lines=st.lists(st.sampled_from(["", " ", "a", "b", "c", "é", "a\r", "\x85", "\x00"]), max_size=12),
    stops=st.lists(st.integers(0, 8), max_size=4),
)
def test_any_lines_and_any_interruptions(tmp_path: Path, lines: list[str], stops: list[int]) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    carry_out(whole, lines)
    for stop in stops:
        try:
            carry_out(broken, lines, Answers(stop))
        except StopError:
            continue
    carry_out(broken, lines)
    assert broken.read_bytes() == whole.read_bytes()


def killed(output: Path, after: int) -> None:
    """A job in a process of its own that kills itself when it has answered so many texts."""
    child = os.fork()
    if child == 0:
        try:
            carry_out(output, answers=Answers(after, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
def test_killed_while_the_output_is_written(tmp_path: Path, unbroken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out"
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(os, "fsync", lambda descriptor: os.kill(os.getpid(), signal.SIGKILL))
            carry_out(output)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert not output.exists()
    assert draft_of(output).read_text("utf-8") == unbroken  # all but its name
    assert carry_out(output).asked == []
    assert output.read_text("utf-8") == unbroken
    assert names(tmp_path) == ["out"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
def test_killed_again_and_again(tmp_path: Path, unbroken: str) -> None:
    output = tmp_path / "out"
    for after in (2, 4, 1, 5, 0, 1):
        killed(output, after)
        assert not output.exists()
    assert len(carry_out(output).asked) == 11 - 2 * SIZE
    assert output.read_text("utf-8") == unbroken
    assert names(tmp_path) == ["out"]


def test_a_window_that_was_half_on_the_disk_is_not_there(
    tmp_path: Path, unbroken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands on the disk in the middle of a transaction too large for memory, as a kill leaves it."""
    monkeypatch.setattr("regard.pipelines.journal._CACHE_KIB", 4)
    lines = [*LINES, *[f"{number} " * 2000 for number in range(90)]]
    left = tmp_path / "left"
    output = tmp_path / "out"
    sizes = []

    def copy(number: int) -> int:
        if number == 60:
            shutil.copytree(tmp_path, left, ignore=shutil.ignore_patterns("left"))
            sizes.append(journal_of(output).stat().st_size)
        return number

    with journal(output, JOB, HERE) as record:
        steps = record.carry_on(lines, Answers(), "in.txt", 100, 200)
        record._connection.create_function("seen", 1, copy)
        record._connection.execute("CREATE TEMP TRIGGER watch AFTER INSERT ON text BEGIN SELECT seen(new.id); END")
        list(steps)
    assert sizes[0] > 100_000
    assert carry_out(left / "out").asked == list(dict.fromkeys(LINES))
    assert (left / "out").read_text("utf-8") == unbroken


@pytest.mark.parametrize("kept", [0, 1, 50, 100, 4096, 5000, 8192, 12288, 16384, 20480, -4096, -1])
def test_a_torn_file_gives_the_right_output_or_none(tmp_path: Path, unbroken: str, kept: int) -> None:
    output = tmp_path / "out"
    stopped(output, 9)
    path = journal_of(output)
    path.write_bytes(path.read_bytes()[:kept])
    with suppress(UserError):
        carry_out(output)
    if not output.exists():
        assert path.exists()
        carry_out(output, restart=True)
    assert output.read_text("utf-8") == unbroken


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE text SET answer = CAST(replace(CAST(answer AS TEXT), 'LINE 2', 'LINE 9') AS BLOB)",
        "DELETE FROM text WHERE id = 2",
        "DELETE FROM text WHERE id = 9",
        "DELETE FROM line WHERE number = 9",
        "UPDATE line SET text = 3 WHERE number = 2",
        "DROP TABLE text",
    ],
)
def test_what_is_not_as_it_was_saved_is_never_written(tmp_path: Path, damage: str) -> None:
    output = tmp_path / "out"
    stopped(output, 10)
    connection = sqlite3.connect(journal_of(output), isolation_level=None)
    connection.execute(damage)
    connection.close()
    with pytest.raises(UserError, match="--restart"):
        carry_out(output, LINES)
    assert not output.exists()


def test_what_was_never_a_journal_is_damaged(tmp_path: Path) -> None:
    output = tmp_path / "out"
    journal_of(output).write_text("something else, and more of it\n" * 200)
    with pytest.raises(UserError, match=r"\.out\.partial: is damaged"):
        carry_out(output)
    assert journal_of(output).read_text().startswith("something else")


@pytest.mark.parametrize("number", [1, 4, 6])
def test_an_input_that_has_changed_is_refused(tmp_path: Path, unbroken: str, number: int) -> None:
    output = tmp_path / "out"
    stopped(output, 6)  # these texts, in nine lines, are saved
    changed = [*LINES]
    changed[number - 1] += "!"
    with pytest.raises(UserError, match=rf"in\.txt, line {number}: is another since .*out was begun.*--restart"):
        carry_out(output, changed)
    with pytest.raises(UserError, match=rf"in\.txt, line {number}: is missing"):
        carry_out(output, LINES[: number - 1])
    carry_out(output)
    assert output.read_text("utf-8") == unbroken


def test_what_is_not_reached_yet_may_change(tmp_path: Path) -> None:
    output = tmp_path / "out"
    stopped(output, 6)
    changed = [*LINES[:-1], "new", "and more"]
    carry_out(output, changed)
    carry_out(tmp_path / "whole", changed)
    assert output.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beam": 5}, "with beam = 4, not 5;"),
        ({"model": "ffff"}, "with another model;"),
        ({"alpha": 0.0, "scores": True}, "with alpha = 0.6, not 0.0 and with scores = None, not True;"),
    ],
)
def test_another_job_is_refused_and_told_the_difference(
    tmp_path: Path, unbroken: str, change: dict[str, object], words: str
) -> None:
    output = tmp_path / "out"
    stopped(output, 6)
    with pytest.raises(UserError, match=r"out: was begun with .*--restart to begin anew") as caught:
        carry_out(output, job={**JOB, **change})
    assert words in str(caught.value)
    assert len(carry_out(output).asked) == 11 - 6
    assert output.read_text("utf-8") == unbroken


def test_what_has_saved_nothing_is_no_job(tmp_path: Path) -> None:
    output = tmp_path / "out"
    stopped(output, 2)
    assert names(tmp_path) == []
    if hasattr(os, "fork"):
        killed(output, 2)
        assert journal_of(output).exists()
    carry_out(output, job={"model": "another"})
    assert names(tmp_path) == ["out"]


def test_other_circumstances_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    output = tmp_path / "out"
    stopped(output, 6)
    carry_out(output, here={**HERE, "workers": 1})
    assert "out: was begun with workers = 2, not 1: what is to come may be rounded otherwise" in caplog.text


def test_restart_begins_anew(tmp_path: Path) -> None:
    output = tmp_path / "out"
    stopped(output, 9)
    answers = carry_out(output, ["other", "lines"], job={"model": "another"}, restart=True)
    assert answers.asked == ["other", "lines"]
    assert carry_out(output, ["more"], restart=True).asked == ["more"]
    assert names(tmp_path) == ["out"]


def test_it_is_said_where_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="regard")
    output = tmp_path / "out"
    stopped(output, 7, error=KeyboardInterrupt)
    assert caplog.messages == [f"{output}: 9 lines are done; the same command goes on from there"]
    carry_out(output)
    assert caplog.messages[1:] == [f"going on at line 10 of {output}"]
    stopped(output, 2, error=KeyboardInterrupt)
    assert len(caplog.messages) == 2


def test_a_second_process_is_refused(tmp_path: Path, unbroken: str) -> None:
    output = tmp_path / "out"
    stopped(output, 6)

    def try_it() -> None:
        for restart in (False, True):
            with pytest.raises(UserError, match="out: another process is writing it"):
                carry_out(output, restart=restart)
        assert carry_out(tmp_path / "other").asked

    answers = Answers(2, try_it)
    carry_out(output, answers=answers)
    assert len(answers.asked) == 11 - 6
    assert output.read_text("utf-8") == unbroken


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """As if the disk was full from there on."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [30_000, 50_000, 70_000])
def test_a_full_disk_costs_nothing_that_was_done(tmp_path: Path, size: int) -> None:
    output = tmp_path / "out"
    lines = [*LINES, *[f"{number} " * 1000 for number in range(40)]]
    with no_file_above(size), pytest.raises(JobError, match=r"\.out\.partial: could not be written: .*run again"):
        carry_out(output, lines)
    assert not output.exists()
    answers = carry_out(output, lines)
    assert len(answers.asked) < 11 + 40
    carry_out(tmp_path / "whole", lines)
    assert output.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("name", ["missing/out", "folder"])
def test_a_place_that_cannot_be_written_is_said(tmp_path: Path, name: str) -> None:
    journal_of(tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"cannot be written: .*choose another place"):
        carry_out(tmp_path / name)


def test_a_link_stays_and_its_journal_is_where_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "out")
    stopped(tmp_path / "link", 6)
    assert names(tmp_path / "there") == [".out.partial"]


def test_wrong_numbers_of_answers_are_not_saved(tmp_path: Path) -> None:
    with journal(tmp_path / "out", JOB, HERE) as record:
        steps = record.carry_on(LINES, lambda texts, numbers: [Answer(("x",))], "in.txt", SIZE, MOST)
        with pytest.raises(ValueError, match="shorter"):
            next(steps)
        assert record.lines == 0


def test_lines_are_read_as_they_are_needed(tmp_path: Path) -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        for read in range(1, 101):
            yield str(read % 40)

    with journal(tmp_path / "out", JOB, HERE) as record:
        ahead = [read - done for done in record.carry_on(lines(), Answers(), "in.txt", SIZE, MOST)]
    assert max(ahead) == 0
    assert read == 100


def test_memory_does_not_grow_with_the_number_of_lines(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        output = tmp_path / f"out-{count}"
        tracemalloc.start()
        with journal(output, JOB, HERE) as record:
            lines = (f"a text with the number {number // 2}" for number in range(count))
            for _ in record.carry_on(lines, lambda texts, _: (Answer((text,)) for text in texts), "in.txt", 256, 1024):
                pass
            assert sum(1 for _ in record.answers()) == count
            (cache,) = record._connection.execute("PRAGMA cache_size").fetchone()
            assert -65536 <= cache < 0  # KiB, however large the file
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(500)
    assert peak(12_000) < 1.2 * peak(3_000)


def test_the_journal_is_an_ordinary_database(tmp_path: Path) -> None:
    output = tmp_path / "out"
    stopped(output, 6)
    with sqlite3.connect(journal_of(output)) as connection:
        assert connection.execute("SELECT count(*) FROM line").fetchone() == (9,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
