"""Memory of this machine and of this process: what is still to be had, what is held, and what was held at most."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

if sys.platform != "win32":
    import resource

CGROUPS = Path("/sys/fs/cgroup")
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Held:
    """Bytes that this process has in memory."""

    now: int
    peak: int
    """Most at a time since its begin, or since `forget_peak`."""


def held() -> Held:
    """What this process has in memory: its resident set."""
    try:
        lines = STATUS.read_text(encoding="utf-8").splitlines()
        fields = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
        return Held(_kibibytes(fields["VmRSS"]), _kibibytes(fields["VmHWM"]))
    except (OSError, KeyError, ValueError):  # no Linux: the peak is all that can be asked for
        if sys.platform == "win32":
            return Held(0, 0)
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return Held(peak, peak)


def held_on(device: torch.device) -> Held:
    """What this process holds where it computes: in the memory of a GPU, or in that of the machine."""
    if device.type == "cuda":
        return Held(torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device))
    return held()


def forget_peak(device: torch.device) -> None:
    """Let the peak be that from now on, where the system can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def available(device: torch.device) -> int:
    """Bytes that this process may hold in all before it runs out of memory, what it holds already included.

    On a GPU, of its memory. Else the least of what the machine has and what the limits of all
    control groups leave; what only caches files counts as free.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return min([_machine(), *_groups()]) + held().now


def _machine() -> int:
    """Bytes of memory that nobody uses."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        return _kibibytes(fields["MemAvailable"])
    except (OSError, KeyError, ValueError):
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return sys.maxsize // 2


def _groups() -> list[int]:
    """What the limits of the control groups that this process is in leave."""
    try:
        return rooms(Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines())
    except OSError:
        return []


def rooms(entries: list[str]) -> list[int]:
    """What the limit of each control group, and of each that holds it, leaves; both versions of them are read.

    `entries` are lines such as `0::/user.slice` (version 2) or `4:memory:/batch` (version 1).
    """
    found = []
    for entry in entries:
        _, controllers, name = entry.split(":", 2)
        if controllers == "":
            root, limit, used, prefix = CGROUPS, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            root, limit, used = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            prefix = "total_"
        else:
            continue
        group = root / name.lstrip("/")
        if not group.exists():  # in a container, whose own group stands at the root under a name not seen there
            group = root
        chain = [group, *(each for each in group.parents if each.is_relative_to(root))]
        found += [room for each in chain if (room := _room(each, limit, used, prefix)) is not None]
    return found


def _room(group: Path, limit: str, used: str, prefix: str) -> int | None:
    """What the limit of one control group leaves; None where it has none."""
    try:
        most = int((group / limit).read_text(encoding="ascii"))
        taken = int((group / used).read_text(encoding="ascii"))
        entries = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):  # no limit, which version 2 writes as "max"
        return None
    caches = sum(int(entries.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(0, most - taken + caches)


def _kibibytes(text: str) -> int:
    """`  1234 kB` as bytes."""
    return int(text.split(maxsplit=1)[0]) * 1024


def size(count: float) -> str:
    """Bytes as people read them: `735 MiB`, `2.1 GiB`."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
