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


def rss() -> float:
    """MiB that the process has in memory, once the C library has given back what is free."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
