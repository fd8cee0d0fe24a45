"""Every row of the promises in docs/reference.md is held by tests, and this is where they are named.

A row goes by its first cell; in the table of errors by its first two. A test goes by its file and its function; a way
out by the function that takes it.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from named import TESTS, is_there
from spies import on_asyncio
from stories import AgentsRun, Story
from streamguard import StreamEnd, guarded_stream

PAGE = TESTS.parent / "docs" / "reference.md"

PROMISES = {
    # Errors and warnings
    "`TypeError` at the call": (
        "test_no_sources::test_no_source",
        "test_options::test_option",
        "test_options::test_async_predicate_is_refused_at_once",
        "test_no_sources::test_class_of_runs_is_a_callable",
    ),
    "`TypeError` at the first read": (
        "test_sources::test_what_a_callable_makes_is_no_stream",
        "test_sources::test_what_a_coroutine_gives_is_no_stream",
        "test_sources::test_what_a_context_gives_is_no_stream",
    ),
    "`TypeError` at a read": ("test_options::test_predicate_that_returns_an_awaitable",),
    "`ValueError` at the call": ("test_options::test_option", "test_chain::test_bad_options"),
    "`RuntimeError` at a read": (
        "test_stream::test_not_entered",
        "test_stream::test_read_after_the_block",
        "test_stream::test_second_reader",
        "test_chain_ways_out::test_second_reader",
    ),
    "`RuntimeError` on entering or leaving": (
        "test_stream::test_entered_twice",
        "test_stream::test_left_without_having_been_entered",
    ),
    "`RuntimeError` from `end`": ("test_stream::test_end_before_the_exit", "test_chain::test_end_before_the_exit"),
    "`RuntimeError` from `aclose()`": (
        "test_stream::test_aclose_inside_the_source",
        "test_stream::test_entered_in_another_loop",
    ),
    "`RuntimeError` from `then()`, `hand_off()`": (
        "test_chain::test_member_for_an_exhausted_chain",
        "test_chain_hand_off::test_outside_the_block",
    ),
    "`CleanupError` from the exit": (
        "test_closing::test_yields_in_its_finally",
        "test_closing::test_cancellation_nobody_asked_for",
    ),
    "`CleanupTimeoutError` from the exit": (
        "test_closing::test_hang_in_the_cleanup",
        "test_closing::test_tail_has_a_limit_of_its_own",
        "test_promises::test_cancel_has_a_limit",
    ),
    "`ResourceWarning`": ("test_abandoned::test_never_entered", "test_abandoned::test_abandoned"),
    "`UnguardedStreamWarning`": ("test_pytest_plugin::test_warn",),
    # Ways out
    "`break`, `return`": (
        "test_ways_out::by_break",
        "test_ways_out::by_return",
        "test_ways_out::test_never_iterated",
    ),
    "the source's own end": ("test_ways_out::by_exhaustion",),
    "`until`": ("test_ways_out::by_until",),
    "an error in the body": ("test_ways_out::by_an_error_in_the_body", "test_ways_out::by_generator_exit_in_the_body"),
    "an error in the source": ("test_ways_out::by_an_error_in_the_source",),
    "`stop()`, `aclose()`": (
        "test_ways_out::by_stop_in_the_body",
        "test_ways_out::by_stop_while_the_source_waits",
        "test_ways_out::by_aclose_while_the_source_waits",
        "test_stream::test_stop_inside_the_source",
    ),
    "`task.cancel()`, on asyncio": (
        "test_ways_out::by_cancel_while_the_body_works",
        "test_ways_out::by_several_cancels_at_once",
        "test_ways_out::by_cancels_while_it_closes",
        "test_ways_out::test_cancelled_at_any_turn",
    ),
    "a cancel scope of anyio or trio, a timeout": (
        "test_ways_out::by_a_scope_while_the_body_works",
        "test_ways_out::by_a_scope_while_the_source_waits",
        "test_ways_out::by_move_on_after_in_the_source",
        "test_ways_out::by_asyncio_timeout_in_the_body",
        "test_ways_out::test_scope_cancelled_at_any_turn",
        "test_ways_out::test_way_out_of_trio",
    ),
    "`KeyboardInterrupt`, `SystemExit` in the body": (
        "test_ways_out::by_a_keyboard_interrupt_in_the_body",
        "test_promises::test_system_exit_in_the_body",
        "test_shutdown::test_ctrl_c",
    ),
    # How a source is closed
    "never read": (
        "test_sources::test_never_iterated",
        "test_sources::test_unread_coroutine_is_closed",
        "test_futures::test_unread_pending_future",
        "test_sources::test_nothing_is_opened_before_the_first_read",
    ),
    "at a `yield`": (
        "test_closing::test_at_a_yield_break",
        "test_closing::test_at_a_yield_error",
        "test_closing::test_at_a_yield_scope",
        "test_closing::test_at_a_yield_native_cancel",
    ),
    "inside its own `await`": (
        "test_closing::test_in_its_await_one_edge",
        "test_closing::test_in_its_await_several_levels",
    ),
    "at work on a timeout of its own": (
        "test_closing::test_answering_its_own_timeout",
        "test_closing::test_answering_its_own_timeout_too_long",
    ),
    "a run handle": (
        "test_runs::test_run_left_early",
        "test_runs::test_complete_run_is_not_cancelled",
        "test_runs::test_run_that_the_user_is_cancelling",
    ),
    "still busy at the deadline": (
        "test_closing::test_hang_in_the_cleanup",
        "test_closing::test_every_cancellation_swallowed",
    ),
    # Generators inside a source
    "and drops while it closes": ("test_hooks::test_inner_generator", "test_hooks::test_three_levels"),
    "and drops while it runs": (
        "test_hooks::test_close_waits_for_the_finaliser_of_the_loop",
        "test_hooks::test_dropped_while_running_is_closed_at_the_next_step",
    ),
    "and keeps, suspended": (
        "test_hooks::test_connection_that_an_agent_keeps",
        "test_hooks::test_borrowed_iterator",
    ),
    # A source that misbehaves
    "raises a group of nothing but `GeneratorExit`": (
        "test_closing::test_group_of_generator_exit",
        "test_closing::test_mixed_group",
    ),
    "yields in its `finally`": (
        "test_closing::test_yields_in_its_finally",
        "test_closing::test_yields_for_ever_in_its_finally",
    ),
    "hangs, or swallows every cancellation": (
        "test_closing::test_hang_in_the_cleanup",
        "test_closing::test_every_cancellation_swallowed",
        "test_closing::test_async_tail_after_a_hung_close",
    ),
    "raises, while it is closed, a cancellation that nobody asked for": (
        "test_closing::test_cancellation_nobody_asked_for",
    ),
    "swallows the cancellation of its consumer": (
        "test_closing::test_source_that_swallows_the_consumers_cancellation",
    ),
    # Which error leaves the block
    "nothing, `break`, `return`, `GeneratorExit` | fails": (
        "test_errors::test_break_and_cleanup_fails",
        "test_errors::test_return_and_cleanup_fails",
        "test_errors::test_generator_exit_and_cleanup_fails",
        "test_aclosing::test_break_ok_cleanup_fails",
        "test_aclosing::test_generator_exit_in_the_body_cleanup_fails",
    ),
    "error E | succeeds": (
        "test_errors::test_error_of_the_body",
        "test_errors::test_error_of_the_source",
        "test_errors::test_group_of_the_user",
        "test_aclosing::test_error_cleanup_ok",
    ),
    "error E | fails with C": (
        "test_errors::test_error_and_cleanup_fails",
        "test_aclosing::test_error_cleanup_fails",
        "test_chain_ways_out::test_error_of_the_body_and_two_cleanups_fail",
    ),
    "cancelled | fails with C": (
        "test_errors::test_cancelled_and_cleanup_fails",
        "test_errors::test_scope_cancelled_and_cleanup_fails",
        "test_aclosing::test_cancelled_cleanup_fails",
        "test_chain_ways_out::test_cancelled_and_a_cleanup_fails",
    ),
    "error E in a cancelled scope | cut by that scope": (
        "test_errors::test_error_in_a_cancelled_scope",
        "test_aclosing::test_error_in_a_cancelled_scope",
    ),
    "error E, then a native cancellation while closing | succeeds": (
        "test_errors::test_error_then_cancelled",
        "test_aclosing::test_error_then_a_native_cancel_in_the_cleanup",
    ),
    "anything | `KeyboardInterrupt`, `SystemExit`": (
        "test_errors::test_interrupt_in_the_cleanup",
        "test_errors::test_tail_runs_after_an_interrupt",
        "test_aclosing::test_interrupt_in_the_cleanup",
    ),
    "nothing | fails with C1, then with C2": (
        "test_errors::test_several_cleanups_fail",
        "test_chain_ways_out::test_two_cleanups_fail",
    ),
    "an error that nobody read | succeeds": ("test_errors::test_unread_error_leaves_from_the_exit",),
    "an error behind items that nobody read | succeeds": ("test_prefetch::test_error_behind_unread_items",),
    # Cancellations while the block is being left
    "a native cancellation": (
        "test_closing::test_native_cancel_during_the_close",
        "test_closing::test_native_cancel_at_any_turn_of_the_close",
    ),
    "`asyncio.timeout`, `asyncio.wait_for` around the block": (
        "test_closing::test_asyncio_timeout_during_the_close",
        "test_closing::test_wait_for_during_the_close",
    ),
    "a cancel scope, `anyio.move_on_after` around the block": (
        "test_closing::test_scope_cancelled_during_the_close",
        "test_closing::test_move_on_after_during_the_close",
    ),
}


def rows() -> list[str]:
    """The rows of the tables on the page, by what they go by."""
    tables = PAGE.read_text().split("\n\n")
    found = []
    for header, _, *lines in (table.splitlines() for table in tables if table.startswith("| ")):
        width = 2 if len(cells(header)) == 4 else 1
        found += [" | ".join(cells(line)[:width]) for line in lines]
    return found


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_row_has_its_tests() -> None:
    """No promise on the page without a test, and no test here for what is not promised."""
    assert rows() == list(PROMISES)


@pytest.mark.parametrize("name", sorted({name for names in PROMISES.values() for name in names}))
def test_every_test_is_there(name: str) -> None:
    """What is named here exists."""
    assert is_there(name)


# -- what the tests of single parts do not show


class ReleasedRun(AgentsRun):
    """A run handle whose result lets go of its agents, and whose events come through two generators."""

    new_items = ()
    final_output = last_agent = None

    def to_input_list(self) -> list[object]:
        return []

    def release_agents(self) -> None:
        self.story.log.append("released")

    async def stream_events(self) -> AsyncGenerator[int, None]:
        try:
            async for event in self._inner():
                yield event
        finally:
            self.story.note("outer closed")

    async def _inner(self) -> AsyncGenerator[int, None]:
        try:
            async for event in super().stream_events():
                yield event
        finally:
            self.story.note("inner closed")


@on_asyncio
@pytest.mark.anyio
async def test_order_of_the_exit() -> None:
    """One thing after the other: cancel, the run is told, the source, what is in it, the run's end, release, tail."""
    story = Story()

    def tail(end: StreamEnd[int]) -> None:
        story.log.append("tail")

    run = ReleasedRun(story)
    stream = guarded_stream(
        run, cancel=lambda: story.log.append("cancel of the user"), release_agents=True, tail=tail, cleanup_timeout=5
    )
    async with stream:
        async for _ in stream:
            break
    assert story.log == [
        "cancel of the user",
        "cancel",
        "outer closed",
        "inner closed",
        "model closed",
        "released",
        "tail",
    ]
    assert len(story.tasks) == 1
    assert run.run_loop_task.done()


@pytest.mark.anyio
async def test_system_exit_in_the_body() -> None:
    """SystemExit leaves the block after everything was closed, and the tail has run."""
    log: list[str] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            log.append("closed")

    with pytest.raises(SystemExit):
        async with guarded_stream(source(), tail=lambda _: log.append("tail")) as stream:
            async for _ in stream:
                raise SystemExit
    assert log == ["closed", "tail"]


@on_asyncio
@pytest.mark.anyio
async def test_cancel_has_a_limit() -> None:
    """A `cancel` that hangs is given up at the limit; the source is closed all the same."""
    log: list[str] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            log.append("closed")

    async def cancel() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"the cancel of .*source.* did not end"):
        async with guarded_stream(source(), cancel=cancel, cleanup_timeout=0.01) as stream:
            async for _ in stream:
                break
    assert log == ["closed"]
