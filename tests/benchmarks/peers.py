"""Other ways to leave a stream, for the reader: what each costs, and what it does not guarantee.

They run on asyncio. What each does was tried one by one for the comparison in the docs; here stands one line of it.
"""

from dataclasses import dataclass

from contenders import BLOCKS, bare, numbers
from costs import MANY_ITEMS, MANY_STREAMS, items, streams
from timing import interleave

OPEN_LATER = "what the source reads in a bare loop is closed later, and a cancellation cuts the cleanup"
REMARKS = {
    "Aclosing": OPEN_LATER,
    "guarded_stream": "the source runs in a task of its own",
    "contextlib.aclosing": f"{OPEN_LATER}; its error hides the body's",
    "asyncstdlib.scoped_iter": f"{OPEN_LATER}; its error hides the body's",
    "aiostream.stream": f"{OPEN_LATER}; its error hides the body's",
    "aioitertools.islice": "no block: what is left is closed later, by the event loop",
}
"""What has to be known; of guarded_stream, the rest is guaranteed."""


@dataclass(frozen=True)
class Peer:
    name: str
    per_item: float
    """Microseconds, and the times of a bare loop."""
    of_bare: float
    per_stream: float
    """Microseconds, for three items of ten, then left."""
    remark: str


async def measure(_backend: str, rounds: int) -> list[Peer]:
    contenders = {name: BLOCKS[name] for name in REMARKS}
    cases = {name: items(one, numbers, MANY_ITEMS) for name, one in {"bare": bare, **contenders}.items()}
    one = await interleave(cases, MANY_ITEMS, rounds)
    shape = "3 items of 10, then left"
    many = await interleave({n: streams(c, shape, MANY_STREAMS) for n, c in contenders.items()}, MANY_STREAMS, rounds)
    return [
        Peer(name, one.micros(name), one.ratio(name, "bare").median, many.micros(name), remark)
        for name, remark in REMARKS.items()
    ]


HEADER = f"{'peers, on asyncio':<27}{'x bare':>8}{'us an item':>12}{'us a stream':>13}   what it does not guarantee"


def line(peer: Peer) -> str:
    return f"{peer.name:<27}{peer.of_bare:>8.2f}{peer.per_item:>12.3f}{peer.per_stream:>13.2f}   {peer.remark}"
