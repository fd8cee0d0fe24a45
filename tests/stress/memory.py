"""How much memory this process has, after a collection."""

import contextlib
import ctypes
import os
import sys
from pathlib import Path

from nothing_left import collect_until_quiet


def blocks() -> int:
    """Python's memory blocks that are in use."""
    collect_until_quiet()
    return sys.getallocatedblocks()


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    )


def heap() -> float:
    """MiB that the C library has given out: what is too large for Python's blocks. 0 if it does not tell."""
    try:
        tell = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):  # only glibc does
        return 0.0
    tell.restype = _Mallinfo
    told = tell()
    return float(told.uordblks + told.hblkhd) / 2**20


def rss() -> float:
    """MiB that the process has in memory, once the C library has given back what is free."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
