"""A name server of one's own, and the kernel's namespaces in which every program asks it.

Run as a script inside `inside()`, this file serves envs on two addresses under one name, steps them, takes one address
away, and prints what came of that as one line of JSON.
"""

import contextlib
import json
import shutil
import subprocess
import sys

NAME, PORT = "envs.training.svc", 8000

SCRIPT = """
ip link set lo up &&
mount --bind "$1" /etc/resolv.conf &&
mount --bind "$2" /etc/nsswitch.conf &&
exec "$3" "$4"
"""


def inside(tmp_path):
    """Run this file where the only name server is its own; None if this kernel gives no namespaces to its users."""
    resolv, nsswitch = tmp_path / "resolv.conf", tmp_path / "nsswitch.conf"
    resolv.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    nsswitch.write_text("hosts: files dns\n")
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rmn", "true"], capture_output=True).returncode:
        return None
    command = ["unshare", "-rmn", "sh", "-c", SCRIPT, "sh", resolv, nsswitch, sys.executable, __file__]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class NameServer:
    """Answers for one name, on 127.0.0.1 port 53.

    Attributes:
        addresses: the name's addresses; may be changed at any time.
    """

    def __init__(self, name, addresses):
        from dnslib.server import DNSLogger, DNSServer

        self.name, self.addresses = name, list(addresses)
        DNSServer(self, address="127.0.0.1", port=53, logger=DNSLogger(logf=lambda line: None)).start_thread()

    def resolve(self, request, handler):
        """Answer a request, as dnslib calls it."""
        from dnslib import QTYPE, RR, A

        reply = request.reply()
        if request.q.qtype == QTYPE.A and str(request.q.qname).rstrip(".") == self.name:
            for address in self.addresses:
                reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(address), ttl=0))
        return reply


def _main():
    from helpers_server import running
    from helpers_tally import Endless

    from openenv_gym import RemoteVecEnv
    from openenv_gym.fleet import StaticLauncher
    from openenv_gym.server import create_app

    name_server = NameServer(NAME, ["127.0.0.3", "127.0.0.2"])
    launcher = StaticLauncher(f"dns+ws://{NAME}:{PORT}")
    found = {"first": list(launcher.servers())}
    with contextlib.ExitStack() as stack:
        leaving = stack.enter_context(contextlib.ExitStack())
        leaving.enter_context(running(create_app(Endless), host="127.0.0.3", port=PORT))
        stack.enter_context(running(create_app(Endless), host="127.0.0.2", port=PORT))
        envs = stack.enter_context(RemoteVecEnv(launcher, 4, message_timeout_s=20))
        envs.reset(seed=1)
        envs.step([0] * 4)
        name_server.addresses = ["127.0.0.2"]
        leaving.close()
        _, _, _, truncated, infos = envs.step([0] * 4)
        found |= {"truncated": truncated.tolist(), "lost": infos["connection_lost"].tolist()}
        observations = envs.step([0] * 4)[0]
        found["steps"] = observations[:, 1].tolist()
        found["urls"] = [link.url for link in envs.rollout.pool.links]
    name_server.addresses = []
    with contextlib.suppress(ConnectionError):
        found["none"] = list(launcher.servers())
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
