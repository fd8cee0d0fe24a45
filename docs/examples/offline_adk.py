"""A google-adk app that needs no network and no key: a scripted model and two agents."""

from collections.abc import AsyncGenerator, Callable

from google.adk.agents import BaseAgent, InvocationContext, LlmAgent, RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from offline_wire import Wire


def answer(*pieces: str) -> list[LlmResponse]:
    """A streamed answer: its pieces, then the whole of it."""
    partial = [LlmResponse(content=types.ModelContent(piece), partial=True) for piece in pieces]
    return [*partial, LlmResponse(content=types.ModelContent(" ".join(pieces)))]


def tool_call(name: str, **args: str) -> LlmResponse:
    """The model asks for a tool. `transfer_to_agent` is the tool that hands the turn over."""
    part = types.Part.from_function_call(name=name, args=dict(args))
    return LlmResponse(content=types.ModelContent(part))


class OfflineModel(BaseLlm):
    """Gives the scripted replies, one for each call, over a wire that it closes itself."""

    wire: Wire
    replies: list[list[LlmResponse]]

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        reply = self.replies.pop(0)
        self.wire.open()
        try:
            for piece in reply:
                await self.wire.receive(piece)
                yield piece
        finally:
            await self.wire.close()


class OfflineAgent(BaseAgent):
    """An agent without a model: it gives its one reply by itself."""

    wire: Wire
    reply: list[LlmResponse]

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        self.wire.open()
        try:
            for piece in self.reply:
                await self.wire.receive(piece)
                yield Event(
                    author=self.name,
                    invocation_id=ctx.invocation_id,
                    content=piece.content,
                    partial=piece.partial,
                )
        finally:
            await self.wire.close()


def two_agents(wire: Wire, find_order: Callable[[str], str]) -> LlmAgent:
    """A concierge that calls a tool and then transfers to the refunds specialist, who answers."""
    refunds = LlmAgent(
        name="refunds",
        description="Pays money back.",
        model=OfflineModel(
            model="offline-refunds",
            wire=wire,
            replies=[answer("Your money", "is on", "its way.")],
        ),
    )
    return LlmAgent(
        name="concierge",
        tools=[find_order],
        sub_agents=[refunds],
        model=OfflineModel(
            model="offline-concierge",
            wire=wire,
            replies=[
                [tool_call("find_order", number="1815")],
                [tool_call("transfer_to_agent", agent_name="refunds")],
            ],
        ),
    )


async def open_runner(agent: BaseAgent) -> InMemoryRunner:
    """A runner that keeps its one session in memory."""
    runner = InMemoryRunner(agent=agent, app_name="shop")
    await runner.session_service.create_session(app_name="shop", user_id="ada", session_id="today")
    return runner


def start_turn(runner: InMemoryRunner) -> AsyncGenerator[Event, None]:
    """What the user says, answered as a stream of events."""
    return runner.run_async(
        user_id="ada",
        session_id="today",
        new_message=types.UserContent("Where is my money?"),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    )
