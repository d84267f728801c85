"""What a killed write leaves is found; what is still being written is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regard.text.lines import atomic_write, leftovers

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")


def test_a_killed_write_and_one_that_goes_on(tmp_path: Path) -> None:
    code = (
        "import os, sys; from regard.text.lines import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "text"], check=False)
    (killed,) = tmp_path.iterdir()
    for name in ("text", ".other.tmp", ".0123456789abcdef.tmp.txt", "0123456789abcdef.tmp"):
        (tmp_path / name).touch()
    with atomic_write(tmp_path / "text") as file:
        file.write(b"whole")
        assert leftovers(tmp_path) == [killed]
        killed.unlink()
        assert leftovers(tmp_path) == []
    assert (tmp_path / "text").read_bytes() == b"whole"
    assert leftovers(tmp_path / "nowhere") == []
