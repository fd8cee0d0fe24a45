"""An openai-agents run that needs no network and no key: a scripted model, a tool that costs."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from agents import Agent, RunConfig, Runner, RunResultStreaming, StreamEvent, function_tool
from agents.items import TResponseStreamEvent
from agents.testing import ScriptedModel, assistant_message, function_call

from offline_wire import Wire


class OfflineModel(ScriptedModel):
    """A scripted model that holds a wire during each call, and closes it itself."""

    def __init__(self, wire: Wire, *replies: list[Any]) -> None:
        super().__init__(replies)
        self.wire = wire

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        self.wire.open()
        try:
            async with aclosing(super().stream_response(*args, **options)) as pieces:
                async for piece in pieces:
                    await self.wire.receive(piece)
                    yield piece
        finally:
            await self.wire.close()


def start_run(wire: Wire, charge_card: Callable[[], Awaitable[str]]) -> RunResultStreaming:
    """The model says what it is about to do, asks for `charge_card`, then says that it is done."""
    model = OfflineModel(
        wire,
        [
            assistant_message("I will charge your card now."),
            function_call("charge_card", {}, call_id="1"),
        ],
        [assistant_message("Your card was charged.")],
    )
    seller = Agent(name="seller", model=model, tools=[function_tool(charge_card)])
    return Runner.run_streamed(seller, "Buy it.", run_config=RunConfig(tracing_disabled=True))


def is_whole_message(event: StreamEvent) -> bool:
    """Whether the answer is complete: what comes after it is the tool call."""
    if event.type != "raw_response_event" or event.data.type != "response.output_item.done":
        return False
    return event.data.item.type == "message"


def text_of(event: StreamEvent) -> str:
    """The text of a whole message."""
    return event.data.item.content[0].text
