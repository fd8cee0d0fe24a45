"""How much memory this process has, after a collection."""

import os
import sys
from pathlib import Path

from nothing_left import collect_until_quiet


def blocks() -> int:
    """Python's memory blocks that are in use."""
    collect_until_quiet()
    return sys.getallocatedblocks()


def rss() -> float:
    """MiB that the process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
