"""An OpenEnv environment that wraps an agent, which does what it is told.

Importing OpenEnv takes long; a test that needs this module imports it in a fixture.
"""

import asyncio

from fastmcp import FastMCP
from openenv.core.env_server import Observation  # noqa: F401 - for the tests that take it from here
from openenv.core.harness import (
    AgenticHarnessAdapter,
    HarnessAction,  # noqa: F401 - the same
    HarnessConfig,
    HarnessEnvironment,
    HarnessEvent,
    HarnessEventType,
    HarnessNotRunningError,
)


class Adapter(AgenticHarnessAdapter):
    """Says what it heard, and does what some words mean."""

    BUILTIN_TOOL_NAMES = frozenset({"read"})

    def __init__(self, owner, timeout_s):
        super().__init__(HarnessConfig(name="parrot", command=["parrot"], session_timeout_s=timeout_s))
        self.owner, self.alive, self.tools, self.heard, self.lock = owner, False, [], [], None

    async def start(self, working_directory):
        if self.owner.broken:
            raise OSError("no parrot, and a secret")
        self.alive, self.heard, self.lock = True, [], asyncio.Lock()

    async def stop(self):
        self.alive = False
        self.owner.stopped += 1

    async def inject_tools(self, tools, bridge_url=None):
        self.tools = [tool.name for tool in tools]

    async def is_alive(self):
        return self.alive

    async def send_message_streaming(self, message):
        self.heard.append(message)
        async with self.lock:  # which belongs to the event loop that it was first used in
            if message != "hang":  # whose first event is there before any limit can run out
                await asyncio.sleep(0)
        data = {"text": message, "heard": self.heard, "tools": self.tools}
        yield HarnessEvent(type=HarnessEventType.TEXT_OUTPUT, data=data)
        if message == "crash":
            raise RuntimeError("a secret")
        if message == "gone":
            raise HarnessNotRunningError("a secret")
        if message == "hang":
            await asyncio.Event().wait()
        if message == "die":
            self.alive = False
        if message != "cut":
            yield HarnessEvent(type=HarnessEventType.TURN_COMPLETE, data={"response": "ä"})


class Agent(HarnessEnvironment):
    """An environment around it, with a tool whose name the agent has already.

    Each test makes a subclass, whose attributes are its own: an agent of an earlier test may still be stopped then.

    Attributes:
        broken: whether none can be started.
        stopped: how many were.
    """

    broken = False
    stopped = 0

    def __init__(self, timeout_s=30.0):
        server = FastMCP("tools")

        @server.tool
        def read() -> str:
            return "this"

        super().__init__(Adapter(type(self), timeout_s), mcp=server)
