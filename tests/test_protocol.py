"""openenv_gym.protocol: both ends of a session against each other, over a wire that breaks wherever it can."""

from collections import deque

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openenv_gym.codec import encode
from openenv_gym.errors import (
    LocalProtocolError,
    MessageTooLarge,
    ProtocolError,
    ProtocolVersionError,
    RemoteProtocolError,
)
from openenv_gym.messages import (
    PROTOCOL_VERSION,
    WINDOW,
    Call,
    Closed,
    EnvFailure,
    Failed,
    Get,
    Hello,
    Reset,
    Resume,
    Resumed,
    Returned,
    Welcome,
)
from openenv_gym.protocol import ClientProtocol, ClientState, ServerProtocol

HELLO = Hello(version=PROTOCOL_VERSION, num_envs=1)
WELCOME = Welcome(
    version=PROTOCOL_VERSION,
    server="openenv-gym",
    env="CartPole-v1",
    session="5e55",
    secret="5ec7e7",
    observation_space={},
    action_space={},
    metadata={},
    grace_s=60.0,
    max_message_bytes=10_000,
)


def request(name="gravity"):
    return Get(0, None, name)


def decoded(frame, kind):
    return msgspec.msgpack.decode(frame, type=kind)


def is_resume(frame):
    return msgspec.msgpack.decode(frame)[0] == Resume.__struct_config__.tag


class SessionPair:
    """A client, a server and a wire. Each method is one thing that can happen, or nothing where it can't happen now.

    The server takes requests from the wire, runs them in order, one at a time, and keeps running without a connection.
    """

    def __init__(self):
        self.client = ClientProtocol()
        self.server = ServerProtocol()
        self.sent = []  # names of the requests
        self.executed = []  # names, in the order in which they ran
        self.answered = []  # names in the replies that the client got
        self.abandoned = set()
        self.accepted = deque()  # requests that the server has taken but not run
        self.to_server = deque()
        self.to_client = deque()
        self.stale = deque()  # frames from broken connections that the server reads late
        self.connected = True  # the server reads from the connection
        self.attached = True  # and writes to it: on a new one only once it was resumed there
        decoded(self.client.hello(HELLO), Hello)
        assert self.client.answer(encode(WELCOME)) == []

    def client_sends(self):
        if len(self.client.pending) < WINDOW:
            name = f"request {len(self.sent) + 1}"
            id, frame = self.client.send(request(name))
            self.sent.append(name)
            assert id == len(self.sent)
            if self.client.state is ClientState.READY:
                self.to_server.append(frame)

    def client_gives_up(self):
        for id in self.client.pending:
            self.client.abandon(id)
            self.abandoned.add(f"request {id}")

    def server_takes(self):
        if self.connected and self.to_server:
            self._take(self.to_server.popleft())

    def server_takes_late(self):
        if self.stale:
            self._take(self.stale.popleft())

    def _take(self, frame):
        if is_resume(frame):
            self.attached = True
            self.to_client.extend(self.server.resume(decoded(frame, Resume).received))
            return
        request = self.server.receive(frame)
        if request is not None:
            self.accepted.append(request)

    def server_runs(self):
        if self.accepted:
            request = self.accepted.popleft()
            self.executed.append(request.name)
            frame = self.server.reply(Returned(request.id, [request.name], []))
            if self.attached:
                self.to_client.append(frame)

    def server_repeats(self):
        """As when a reply is ready just while the connection is resumed."""
        if self.attached and self.to_client and self.server.replies:
            self.to_client.append(self.server.replies[max(self.server.replies)])

    def client_takes(self):
        if not self.to_client:
            return
        frame = self.to_client.popleft()
        if self.client.state is ClientState.OPENING:
            self.to_server.extend(self.client.answer(frame))
        else:
            reply = self.client.receive(frame)
            if reply is not None:
                self.answered.append(reply.values[0])

    def wire_breaks(self):
        """All that is under way is lost."""
        self.client.lost()
        self.to_server.clear()
        self.to_client.clear()
        self.connected = self.attached = False

    def wire_breaks_for_the_client(self):
        """What is under way to the server arrives, though late."""
        if not any(map(is_resume, self.to_server)):
            self.stale.extend(self.to_server)
        self.wire_breaks()

    def client_redials(self):
        if self.client.state is ClientState.LOST:
            self.to_server.append(self.client.resume())
            self.connected = True

    def finish(self):
        """Let everything happen that is still to come."""
        self.client_redials()
        while self.stale or self.to_server or self.accepted or self.to_client:
            self.server_takes_late()
            self.server_takes()
            self.server_runs()
            self.client_takes()


EVENTS = [
    SessionPair.client_sends,
    SessionPair.client_gives_up,
    SessionPair.server_takes,
    SessionPair.server_takes_late,
    SessionPair.server_runs,
    SessionPair.server_repeats,
    SessionPair.client_takes,
    SessionPair.wire_breaks,
    SessionPair.wire_breaks_for_the_client,
    SessionPair.client_redials,
]


class TestASession:
    @given(st.lists(st.sampled_from(EVENTS), max_size=60))
    @settings(deadline=None, max_examples=400)
    def test_runs_each_request_once_and_in_order_whatever_breaks(self, events):
        pair = SessionPair()
        for event in events:
            event(pair)
            assert pair.executed == pair.sent[: len(pair.executed)]
            assert len(pair.server.replies) <= WINDOW
        pair.finish()
        assert pair.executed == pair.sent
        assert pair.answered == [name for name in pair.sent if name in pair.answered]
        assert {*pair.sent} - {*pair.answered} <= pair.abandoned
        assert pair.client.pending == {}
        assert pair.client.received == pair.server.received == len(pair.sent)

    def test_is_resumed_where_it_broke(self):
        pair = SessionPair()
        for _ in range(3):
            pair.client_sends()
        pair.server_takes()
        pair.server_takes()
        pair.server_runs()  # of three requests two have arrived, and one was run; its reply is lost
        pair.wire_breaks()
        resume = decoded(pair.client.resume(), Resume)
        assert resume == Resume(version=PROTOCOL_VERSION, session="5e55", secret="5ec7e7", received=0)
        resumed, first_reply = pair.server.resume(resume.received)
        assert decoded(resumed, Resumed) == Resumed(received=2)
        assert decoded(first_reply, Returned).values == ["request 1"]
        assert [decoded(frame, Get).name for frame in pair.client.answer(resumed)] == ["request 3"]

    def test_sends_after_the_resume_what_came_during_it(self):
        pair = SessionPair()
        pair.wire_breaks()
        pair.client_sends()  # lost
        pair.client_redials()
        pair.client_sends()  # opening
        assert len(pair.to_server) == 1
        pair.finish()
        assert pair.answered == ["request 1", "request 2"]

    def test_drops_the_late_reply_to_what_was_given_up(self):
        pair = SessionPair()
        pair.client_sends()
        pair.client.abandon(1)
        pair.client_sends()
        pair.finish()
        assert pair.executed == ["request 1", "request 2"]
        assert pair.answered == ["request 2"]

    def test_gives_up_only_what_it_waits_for(self):
        pair = SessionPair()
        pair.client.abandon(1)
        pair.client_sends()
        pair.finish()
        assert pair.answered == ["request 1"]

    def test_has_a_window(self):
        pair = SessionPair()
        for _ in range(WINDOW):
            pair.client.send(request())
        with pytest.raises(LocalProtocolError, match=r"^8 requests are without a reply; receive one first$"):
            pair.client.send(request())
        pair.client.receive(encode(Returned(1, [None], [])))
        assert pair.client.send(request())[0] == WINDOW + 1

    def test_a_window_of_replies_is_kept(self):
        server = ServerProtocol()
        for id in range(1, WINDOW + 4):
            server.receive(encode(Get(id, None, "gravity")))
            server.reply(Returned(id, [id], []))
        assert list(server.replies) == list(range(4, WINDOW + 4))
        assert len(server.resume(3)) == 1 + WINDOW
        with pytest.raises(RemoteProtocolError, match=r"^reply 3 isn't kept$"):
            server.resume(2)

    def test_large_replies_are_kept_only_as_far_as_the_limit_goes(self):
        server = ServerProtocol(kept_bytes=2500)
        for id, size in enumerate((1000, 1000, 1000, 5000), 1):
            server.receive(encode(Get(id, None, "gravity")))
            server.reply(Returned(id, [bytes(size)], []))
            assert list(server.replies) == [[1], [1, 2], [2, 3], [4]][id - 1]

    @pytest.mark.parametrize("received", [-1, WINDOW + 3, 2**63])
    def test_a_server_resumes_after_no_reply_that_never_was(self, received):
        server = ServerProtocol()
        for id in (1, 2):
            server.receive(encode(Get(id, None, "gravity")))
            server.reply(Returned(id, [id], []))
        with pytest.raises(RemoteProtocolError, match=rf"^reply {received + 1} isn't kept$"):
            server.resume(received)


# ------------------------------------------------------------------------------------------- the client's states

ANSWERS = {
    "answer": encode(WELCOME),
    "resumed": encode(Resumed(received=0)),
    "refused": encode(Failed(0, "CAPACITY_REACHED", "", "full")),
}
MOVES = {
    "hello": lambda client: client.hello(HELLO),
    "resume": lambda client: client.resume(),
    "answer": lambda client: client.answer(ANSWERS["answer" if client.welcome is None else "resumed"]),
    "refused": lambda client: client.answer(ANSWERS["refused"]),
    "send": lambda client: client.send(request()),
    "receive": lambda client: client.receive(encode(Returned(1, [None], []))),
    "lost": lambda client: client.lost(),
    "close": lambda client: client.close(),
}
WAYS = {
    "new": [],
    "opening": ["hello"],
    "ready": ["hello", "send", "answer"],
    "lost": ["hello", "send", "answer", "lost"],
    "lost unwelcomed": ["hello", "lost"],
    "resuming": ["hello", "send", "answer", "lost", "resume"],
    "closed": ["hello", "send", "answer", "close"],
    "turned away": ["hello", "refused"],
}
LEGAL = {
    "new": {"hello": "opening", "close": "closed"},
    "opening": {"send": "opening", "answer": "ready", "refused": "closed", "lost": "lost", "close": "closed"},
    "ready": {"send": "ready", "receive": "ready", "lost": "lost", "close": "closed"},
    "lost": {"send": "lost", "resume": "opening", "lost": "lost", "close": "closed"},
    "closed": {"lost": "closed", "close": "closed"},
}
LEGAL |= {
    "lost unwelcomed": {event: state for event, state in LEGAL["lost"].items() if event != "resume"},
    "resuming": LEGAL["opening"],
    "turned away": LEGAL["closed"],
}


@pytest.mark.parametrize("event", MOVES)
@pytest.mark.parametrize("way", WAYS)
def test_a_client_makes_only_legal_moves(way, event):
    client = ClientProtocol()
    for step in WAYS[way]:
        MOVES[step](client)
    before = client.state
    if event in LEGAL[way]:
        MOVES[event](client)
        assert client.state is ClientState(LEGAL[way][event])
    else:
        with pytest.raises(LocalProtocolError, match=r"isn't possible while the session is|never welcomed"):
            MOVES[event](client)
        assert client.state is before


class TestTheAnswer:
    def opening(self):
        client = ClientProtocol()
        client.hello(HELLO)
        return client

    def resuming(self, sent=2):
        client = self.opening()
        client.answer(ANSWERS["answer"])
        for _ in range(sent):
            client.send(request())
        client.receive(encode(Returned(1, [None], [])))
        client.lost()
        client.resume()
        return client

    @pytest.mark.parametrize(
        "answer",
        [
            Failed(0, "VERSION_MISMATCH", "", "the server speaks version 2", {"version": 2}),
            msgspec.structs.replace(WELCOME, version=2),
        ],
    )
    def test_of_another_version(self, answer):
        client = self.opening()
        with pytest.raises(ProtocolVersionError) as caught:
            client.answer(encode(answer))
        assert (caught.value.ours, caught.value.theirs) == (PROTOCOL_VERSION, 2)
        assert client.state is ClientState.CLOSED

    def test_can_be_a_refusal(self):
        failed = Failed(0, "CAPACITY_REACHED", "", "full", {"active": 8, "maximum": 8})
        assert self.opening().answer(encode(failed)) == failed

    def test_sends_what_was_sent_early(self):
        client = self.opening()
        id, frame = client.send(request())
        assert (id, client.answer(ANSWERS["answer"])) == (1, [frame])

    @pytest.mark.parametrize(
        "frame", [b"", b"junk", ANSWERS["resumed"], encode(Returned(1, [], [])), encode(HELLO)], ids=repr
    )
    def test_must_be_one(self, frame):
        client = self.opening()
        with pytest.raises(RemoteProtocolError):
            client.answer(frame)
        assert client.state is ClientState.OPENING

    @pytest.mark.parametrize(
        "frame",
        [ANSWERS["answer"], *(encode(Resumed(received=received)) for received in (-1, 0, 3, 2**40))],
        ids=["welcome", "-1", "0", "3", "2**40"],
    )
    def test_must_fit_what_was_sent(self, frame):
        client = self.resuming()  # of two requests, one has a reply
        with pytest.raises(RemoteProtocolError):
            client.answer(frame)

    @pytest.mark.parametrize("received, again", [(1, 1), (2, 0)])
    def test_says_what_to_send_again(self, received, again):
        assert len(self.resuming().answer(encode(Resumed(received=received)))) == again


# --------------------------------------------------------------------------------------------- frames that aren't right


def ready(sent=1):
    client = ClientProtocol()
    client.hello(HELLO)
    client.answer(ANSWERS["answer"])
    for _ in range(sent):
        client.send(request())
    return client


class TestTheClientRefuses:
    @pytest.mark.parametrize(
        "frame, text",
        [
            (b"junk", "malformed frame"),
            (ANSWERS["answer"], "malformed frame"),
            (encode(Get(1, None, "gravity")), "malformed frame"),
            (encode(Returned(2, [None], [])), "reply 2 follows reply 0"),
            (encode(Returned(3, [None], [])), "reply 3 follows reply 0"),
            (encode(Returned(0, [None], [])), "reply 0 follows reply 0"),
            (encode(Returned(-1, [None], [])), "reply -1 follows reply 0"),
            (encode(Failed(0, "VALIDATION_ERROR", "", "request 9 follows request 1")), "request 9 follows request 1"),
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_what_is_no_next_reply(self, frame, text):
        client = ready(sent=2)
        with pytest.raises(RemoteProtocolError, match=f"^{text}"):
            client.receive(frame)
        assert client.receive(encode(Returned(1, ["good"], []))).values == ["good"]

    def test_a_reply_to_nothing(self):
        with pytest.raises(RemoteProtocolError, match=r"^reply 1 follows reply 0$"):
            ready(sent=0).receive(encode(Closed(1)))

    def test_a_reply_twice(self):
        client = ready(sent=2)
        reply = encode(Returned(1, [None], []))
        assert client.receive(reply) is not None
        assert client.receive(reply) is None

    @pytest.mark.parametrize(
        "bad, error",
        [
            (Call(0, None, "jump", ["x" * 10_000], {}), MessageTooLarge),
            (Reset(0, None, [2**64], None), LocalProtocolError),
            (Get(0, None, "\ud800"), LocalProtocolError),
        ],
    )
    def test_to_send_what_cannot_be_sent(self, bad, error):
        client = ready()
        with pytest.raises(error) as caught:
            client.send(bad)
        assert "max_message_size_mb" in str(caught.value) or "can't be sent" in str(caught.value)
        assert list(client.pending) == [1]
        assert client.send(request())[0] == 2


class TestTheServerRefuses:
    @pytest.mark.parametrize(
        "frame, text",
        [
            (b"junk", "malformed frame"),
            (encode(HELLO), "malformed frame"),
            (encode(Closed(2)), "malformed frame"),
            (encode(Get(3, None, "gravity")), "request 3 follows request 1"),
            (encode(Get(0, None, "gravity")), "request 0 follows request 1"),
            (encode(Get(-1, None, "gravity")), "request -1 follows request 1"),
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_what_is_no_next_request_and_goes_on(self, frame, text):
        server = ServerProtocol()
        server.receive(encode(Get(1, None, "gravity")))
        with pytest.raises(RemoteProtocolError, match=f"^{text}"):
            server.receive(frame)
        assert server.receive(encode(Get(2, None, "length"))) == Get(2, None, "length")

    def test_a_request_twice(self):
        server = ServerProtocol()
        frame = encode(Get(1, None, "gravity"))
        assert server.receive(frame) == Get(1, None, "gravity")
        assert server.receive(frame) is None


class TestTheReply:
    def test_of_what_cannot_be_encoded_says_so(self):
        server = ServerProtocol()
        reply = Returned(1, [None], [EnvFailure(0, "EXECUTION_ERROR", "ValueError", "\ud800")])
        failed = decoded(server.reply(reply), Failed)
        assert (failed.id, failed.code, failed.error) == (1, "SERIALIZATION_ERROR", "PackError")
        assert failed.message.startswith("this Returned can't be sent: 'utf-8' codec can't encode character '\\ud800'")
        assert decoded(server.resume(0)[1], Failed) == failed

    def test_can_be_replaced_before_it_leaves(self):
        server = ServerProtocol()
        server.receive(encode(Get(1, None, "gravity")))
        server.reply(Returned(1, ["much"], []))
        frame = server.reply(Failed(1, "MESSAGE_TOO_LARGE", "", "the reply is too large"))
        assert server.resume(0)[1] == frame


def test_all_errors_are_protocol_errors():
    assert all(
        issubclass(kind, ProtocolError) for kind in (LocalProtocolError, RemoteProtocolError, ProtocolVersionError)
    )
