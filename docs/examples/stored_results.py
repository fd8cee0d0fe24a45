"""openai-agents: a result that is dropped frees its agents, a result that is stored keeps them.

Look at how many agents are alive after ten turns. Only results that you keep need a release.
"""

import asyncio
import gc
import weakref

from agents import Agent, RunConfig, Runner, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message

from streamguard import ResultHistory


async def ask():
    agent = Agent(name="clerk", model=ScriptedModel([[assistant_message("It is on its way.")]]))
    result = await Runner.run(agent, "Where is my order?", run_config=RunConfig(tracing_disabled=True))
    return result, weakref.ref(agent)


def drop(result):
    pass


class Released(list):
    def append(self, result):
        result.release_agents()  # the SDK's own
        super().append(result)


async def main():
    for name, keep in {
        "dropped": drop,
        "stored in a list": [].append,
        "released by the SDK, then stored in a list": Released().append,
        "stored in a ResultHistory": ResultHistory().append,
    }.items():
        agents = []
        for _ in range(10):
            result, agent = await ask()
            keep(result)
            agents.append(agent)
        del result
        while gc.collect():  # agents hold each other: once is not enough
            pass
        print(f"{name}: {sum(agent() is not None for agent in agents)} of 10 agents are alive")


set_tracing_disabled(True)
asyncio.run(main())
