"""S2: one `RemoteEnv`, against a bare WebSocket echo through FastAPI and against OpenEnv's sync client."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

from harness import Report, add_rows, alternate, milliseconds
from openenv_peer import stock_server
from websockets.asyncio.client import connect

from openenv_gym import RemoteEnv

_ECHO = """
import sys, uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
app = FastAPI()
@app.websocket("/ws")
async def echo(socket: WebSocket):
    await socket.accept()
    try:
        while True:
            await socket.send_bytes(await socket.receive_bytes())
    except WebSocketDisconnect:
        pass
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)
Server(uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio", ws_per_message_deflate=False,
                      ws_max_size=1 << 30)).run()
"""


@contextlib.contextmanager
def echo(size: int) -> Iterator[Callable[[], None]]:
    """One round trip of ``size`` bytes, asked for from a thread that isn't the event loop's."""
    server = subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    url, message = f"ws://127.0.0.1:{port}/ws", bytes(size)

    async def dial():
        return await connect(url, compression=None, max_size=None, proxy=None)

    socket = asyncio.run_coroutine_threadsafe(dial(), loop).result()

    async def round_trip() -> None:
        await socket.send(message)
        await socket.recv()

    try:
        yield lambda: asyncio.run_coroutine_threadsafe(round_trip(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(socket.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.terminate()
        server.wait()


def s2() -> Report:
    """Milliseconds of one step."""
    from openenv.core import GenericEnvClient

    report = Report("S2: one env, milliseconds of one step")
    with contextlib.ExitStack() as stack:
        remote = stack.enter_context(RemoteEnv(local="bench_envs:keyed", env_kwargs={"megabyte": False}))
        remote.reset()
        bare = stack.enter_context(echo(64))
        client = stack.enter_context(GenericEnvClient(base_url=stack.enter_context(stock_server())).sync())
        client.reset()

        def openenv_step() -> None:
            if client.step({"push": 0}).done:
                client.reset()

        results = alternate(
            {
                "RemoteEnv.step": lambda: milliseconds(lambda: remote.step(0)),
                "bare echo": lambda: milliseconds(bare),
                "OpenEnv's sync client": lambda: milliseconds(openenv_step),
            }
        )
    add_rows(report, results, "ms")
    report.compare(results, "RemoteEnv.step", "bare echo", 1.5, at_most=True)
    report.compare(results, "RemoteEnv.step", "OpenEnv's sync client", 1.0, at_most=True)
    report.tried = "S8 has the parts of a vector step of one env, and S1 what was tried to make them smaller."
    return report


if __name__ == "__main__":
    print(s2().markdown())
