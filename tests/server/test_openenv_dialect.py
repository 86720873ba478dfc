"""The OpenEnv dialect without a network: shapes, error codes, trimming, several envs, and ends of sessions."""

import asyncio
import base64
import json
import threading

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Text
from helpers_dialect import (
    CLOSE,
    STATE,
    Client,
    Count,
    Robot,
    batch_step,
    made,
    make_registry,
    replies,
    reset,
    step,
    talk,
)

from openenv_gym.server.json_session import JsonSession
from openenv_gym.server.json_sessions import JsonSessions
from openenv_gym.server.openenv_dialect import converse


def error(reply):
    """The data of an error reply."""
    assert reply.keys() == {"type", "data"}
    assert reply["type"] == "error"
    return reply["data"]


def code(reply):
    return error(reply)["code"]


def observation(value, reward, *, terminated=False, truncated=False, **more):
    """The reply of an env whose observation isn't a Dict."""
    data = {"observation": {"observation": value}, "reward": reward, "done": terminated or truncated}
    return {"type": "observation", "data": {**data, "terminated": terminated, "truncated": truncated, **more}}


class TestShapes:
    def test_an_episode(self):
        assert replies(Count, reset(), step(), step(), step(), CLOSE, env_kwargs={"length": 3}) == [
            observation([0.0], None),
            observation([1.0], 1.0),
            observation([2.0], 1.0),
            observation([3.0], 1.0, terminated=True),
        ]

    def test_a_message_needs_no_data_to_reset(self):
        assert replies(Count, {"type": "reset"}) == [observation([0.0], None)]

    def test_state(self):
        before, _, _, after = replies(Count, STATE, reset(), step(), STATE)
        assert before == {"type": "state", "data": {"episode_id": None, "step_count": 0}}
        assert after["data"]["step_count"] == 1
        assert isinstance(after["data"]["episode_id"], str)

    def test_episodes_have_ids(self):
        answers = replies(Count, reset(episode_id="mine"), STATE, reset(), STATE, reset(), STATE)
        first, second, third = (answer["data"]["episode_id"] for answer in answers[1::2])
        assert first == "mine"
        assert len({first, second, third}) == 3

    def test_an_episode_that_could_not_begin_has_no_name(self):
        class Flaky(Count):
            def reset(self, *, seed=None, options=None):
                if seed == 13:
                    raise ValueError("bad luck")
                return super().reset(seed=seed, options=options)

        *_, bad, state = replies(Flaky, reset(episode_id="first"), reset(seed=13, episode_id="second"), STATE)
        assert error(bad)["message"] == "bad luck"
        assert state["data"]["episode_id"] != "second"

    def test_values_are_those_of_a_local_env(self):
        env = gym.make("CartPole-v1")
        expected = [observation(env.reset(seed=5)[0].tolist(), None)]
        for action in (0, 1, 1):
            value, reward, terminated, truncated, _ = env.step(action)
            expected.append(observation(value.tolist(), reward, terminated=terminated, truncated=truncated))
        env.close()
        assert replies("CartPole-v1", reset(seed=5), step(0), step(1), step(1)) == expected

    def test_truncation(self):
        answers = replies("CartPole-v1", reset(), step(), step(), env_kwargs={"max_episode_steps": 2})
        assert [answers[-1]["data"][key] for key in ("done", "terminated", "truncated")] == [True, False, True]

    def test_infos_are_metadata_where_there_are_any(self):
        info = {"z": np.float32(0.5), "a": {1: (np.array([1, 2]), b"ab")}, "n": float("nan")}
        metadata = {"z": 0.5, "a": {"1": [[1, 2], "YWI="]}, "n": None}
        first, second = replies(Count, reset(), step(), env_kwargs={"info": info})
        assert first == observation([0.0], None, metadata=metadata)
        assert second == observation([1.0], 1.0, metadata=metadata)
        assert list(second["data"]["metadata"]) == ["z", "a", "n"]

    @pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
    def test_no_nan_leaves(self, number):
        first, second = replies(Count, reset(), step(), env_kwargs={"first": number, "reward": number})
        assert first == observation([None], None)
        assert second == observation([1.0], None)

    def test_dict_spaces_are_the_fields_themselves(self):
        factory, envs = made(Robot)
        action = {"turn": [0.25, 3.0], "grip": 1}
        answer = replies(
            factory, reset(), {"type": "step", "data": action}, query={"exclude": "camera", "info_keys": ""}
        )[1]
        assert answer["data"]["observation"] == {"arm": {"a": [float(np.float32(0.1)), -0.5], "b": 4}}
        (given,) = envs[-1].actions
        assert list(given) == ["grip", "turn"]
        np.testing.assert_array_equal(given["turn"], np.array([0.25, 3.0], np.float32))
        assert given["turn"].dtype == np.float32

    def test_actions_arrive_as_their_space_has_them(self):
        factory, envs = made(Count)
        replies(factory, reset(), step(0))
        assert type(envs[-1].calls[-2][1]) is type(Discrete(3).sample())

    def test_typed_openenv_actions_bring_metadata(self):
        assert (
            replies(Count, reset(), {"type": "step", "data": {"action": 0, "metadata": {}}})[1]["type"] == "observation"
        )

    def test_conversion_happens_on_the_envs_thread(self):
        factory, envs = made(Robot)
        replies(factory, reset())
        threads = {thread for _, thread in envs[-1].touched}
        assert len(threads) == 1
        assert threads.pop().startswith("env-worker")


class TestErrors:
    @pytest.mark.parametrize(
        "message, expected",
        [
            ("{", "INVALID_JSON"),
            ("", "INVALID_JSON"),
            ("[" * 100_000, "INVALID_JSON"),
            ("1" * 10_000, "INVALID_JSON"),
            ([1], "VALIDATION_ERROR"),
            ("null", "VALIDATION_ERROR"),
            (b"\x00\x01", "VALIDATION_ERROR"),
            ({}, "UNKNOWN_TYPE"),
            ({"type": "jump"}, "UNKNOWN_TYPE"),
            ({"type": ["reset"]}, "UNKNOWN_TYPE"),
            ({"type": "\ud800"}, "UNKNOWN_TYPE"),
            ({"type": "step"}, "VALIDATION_ERROR"),
            ({"type": "step", "data": [0]}, "VALIDATION_ERROR"),
            ({"type": "step", "data": {"action": 0}, "request_id": 1}, "VALIDATION_ERROR"),
            ({"type": "step", "data": {"action": 0, "\ud800": 1}}, "VALIDATION_ERROR"),
            ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
            (step("left"), "VALIDATION_ERROR"),
            (step(0.5), "VALIDATION_ERROR"),
            (step(None), "VALIDATION_ERROR"),
            (step(3), "VALIDATION_ERROR"),
            (step(-1), "VALIDATION_ERROR"),
            ({"type": "state", "data": {}}, "VALIDATION_ERROR"),
            ({"type": "close", "data": {}}, "VALIDATION_ERROR"),
            (reset(sed=1), "VALIDATION_ERROR"),
            (reset(seed=-1), "VALIDATION_ERROR"),
            (reset(seed=1.5), "VALIDATION_ERROR"),
            (reset(seed=True), "VALIDATION_ERROR"),
            (reset(seed="1"), "VALIDATION_ERROR"),
            (reset(options=[1]), "VALIDATION_ERROR"),
            (reset(episode_id="x" * 256), "VALIDATION_ERROR"),
            (reset(include=["camera"]), "VALIDATION_ERROR"),
            (reset(obs_dtype="float128"), "VALIDATION_ERROR"),
            (reset(envs=[1]), "VALIDATION_ERROR"),
            (reset(envs=[]), "VALIDATION_ERROR"),
            (batch_step(), "VALIDATION_ERROR"),
            (batch_step(0, 3), "VALIDATION_ERROR"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_a_bad_message_costs_a_reply_and_nothing_else(self, message, expected):
        _, _, bad, state, after = replies(Count, reset(), step(), message, STATE, step())
        assert code(bad) == expected
        assert ("errors" in error(bad)) == (expected == "VALIDATION_ERROR")
        assert state["data"]["step_count"] == 1
        assert after == observation([2.0], 1.0)

    @pytest.mark.parametrize(
        "message, entry",
        [
            (
                {**STATE, "request_id": 7},
                {"type": "extra_forbidden", "loc": ["request_id"], "msg": "Extra inputs are not permitted", "input": 7},
            ),
            (
                reset(sed=1),
                {
                    "type": "extra_forbidden",
                    "loc": ["data", "sed"],
                    "msg": "Extra inputs are not permitted",
                    "input": 1,
                },
            ),
            (
                {"type": "step", "data": {"jump": 1}},
                {"type": "missing", "loc": ["action"], "msg": "Field required", "input": {"jump": 1}},
            ),
            (
                batch_step(0, 7),
                {
                    "type": "value_error",
                    "loc": ["data", "actions", 1, "action"],
                    "msg": "7 is not in Discrete(3)",
                    "input": {"action": 7},
                },
            ),
        ],
    )
    def test_validation_errors_say_where(self, message, entry):
        (reply,) = replies(Count, message)
        assert error(reply)["errors"][0] == entry
        assert error(reply)["message"] == f"Invalid message: {'.'.join(map(str, entry['loc']))}: {entry['msg']}"

    def test_errors_say_where_inside_an_action(self):
        message = {"type": "step", "data": {"turn": [0, "x"], "grip": 1}}
        assert error(replies(Robot, message)[0])["errors"][0]["loc"] == ["turn", 1]
        message = {"type": "step", "data": {"turn": [0, 0], "grip": 2}}
        assert error(replies(Robot, message)[0])["errors"][0]["loc"] == ["grip"]

    def test_a_large_input_is_not_sent_back(self):
        (reply,) = replies(Count, step("x" * 5000))
        assert "input" not in error(reply)["errors"][0]

    def test_a_text_action_must_be_in_its_space(self):
        class Typist(Count):
            action_space = Text(3, charset="ab")

        answers = replies(Typist, reset(), step("abc"), step("\ud800"))
        assert [code(answer) for answer in answers[1:]] == ["VALIDATION_ERROR"] * 2

    def test_a_box_may_be_left(self):
        class Pusher(Count):
            action_space = Box(-1, 1, (), np.float32)

        factory, envs = made(Pusher, special=lambda env: None)
        assert replies(factory, reset(), step(1.5))[1]["type"] == "observation"
        assert envs[-1].calls[-2] == ("step", np.float32(1.5))

    def test_step_before_reset(self):
        (reply,) = replies(Count, step())
        assert code(reply) == "EXECUTION_ERROR"
        assert "before calling `reset`" in error(reply)["message"]

    def test_step_after_the_end(self):
        *_, last, again = replies(Count, reset(), step(), step(), reset(), env_kwargs={"length": 1})
        assert code(last) == "EXECUTION_ERROR"
        assert "call `reset`" in error(last)["message"]
        assert again == observation([0.0], None)

    @pytest.mark.parametrize("exception", [ValueError("boom42"), SystemExit("boom42"), AssertionError("boom42\ud800")])
    def test_what_an_env_raises(self, exception):
        def boom(env):
            raise exception

        answers = replies(Count, reset(), step(1), step(0), env_kwargs={"special": boom})
        data = error(answers[1])
        assert data.pop("message").startswith("boom42")
        assert data == {"code": "EXECUTION_ERROR", "type": type(exception).__name__}
        assert answers[2] == observation([2.0], 1.0)

    def test_an_exception_without_words(self):
        def boom(env):
            raise AssertionError

        assert error(replies(Count, reset(), step(1), env_kwargs={"special": boom})[1])["message"] == "AssertionError"

    def test_tracebacks_are_sent_only_for_debugging(self):
        def boom(env):
            raise ValueError("boom42")

        answers = replies(Count, reset(), step(1), env_kwargs={"special": boom}, debug=True)
        assert 'raise ValueError("boom42")' in error(answers[1])["traceback"]

    def test_an_info_that_has_no_json_form(self):
        def spoil(env):
            env.info["map"] = [1, {"x": object()}]

        answers = replies(Count, reset(), step(1), STATE, env_kwargs={"special": spoil})
        assert code(answers[1]) == "SERIALIZATION_ERROR"
        assert "info['map'][1]['x']" in error(answers[1])["message"]
        assert answers[2]["data"]["step_count"] == 1

    def test_an_observation_outside_its_space(self):
        class Liar(Count):
            def step(self, action):
                return "nothing", 0.0, False, False, {}

        assert code(replies(Liar, reset(), step())[1]) == "SERIALIZATION_ERROR"

    def test_a_reply_that_is_too_large(self):
        kwargs = {"env_kwargs": {"info": {"long": "x" * 5000}}, "max_message_size_mb": 4000 / 2**20}
        reply, state = replies(Count, reset(), STATE, **kwargs)
        assert code(reply) == "MESSAGE_TOO_LARGE"
        assert error(reply)["limit"] == 4000
        assert state["type"] == "state"

    def test_a_mistake_of_ours_costs_one_reply(self, monkeypatch, caplog):
        async def broken(self):
            raise KeyError("oops")

        monkeypatch.setattr(JsonSession, "state", broken)
        reply, after = replies(Count, STATE, reset())
        assert error(reply) == {"message": "KeyError: 'oops'", "code": "EXECUTION_ERROR"}
        assert after["type"] == "observation"
        assert "could not be served" in caplog.text

    def test_there_are_no_tools(self):
        (reply,) = replies(Count, {"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/list", "id": "a"}})
        assert (reply["type"], reply["data"]["id"], reply["data"]["error"]["code"]) == ("mcp", "a", -32603)


class TestSessions:
    def test_close(self):
        factory, envs = made(Count)
        client = talk(factory, reset(), CLOSE, "this is never read")
        assert client.closed == (1000, "closed")
        assert len(client.replies) == 1
        assert envs[-1].calls.count(("close",)) == 1

    def test_a_connection_that_breaks_ends_its_session(self):
        factory, envs = made(Count)
        client = talk(factory, reset())
        assert client.closed is None
        assert envs[-1].calls[-1] == ("close",)

    def test_an_env_is_closed_before_its_connection(self):
        factory, envs = made(Count)
        seen = []

        class Watcher(Client):
            async def close(self, code, reason):
                seen.append((envs[-1].calls[-1], registry.capacity.active))

        async def main():
            nonlocal registry
            registry = make_registry(factory)
            client = Watcher(CLOSE)
            await converse(JsonSessions(registry), client, client.receive, {})
            await registry.stop()

        registry = None
        asyncio.run(main())
        assert seen == [(("close",), 0)]

    @pytest.mark.parametrize("count, active", [(1, 2), (2, 1)])
    def test_capacity(self, count, active):
        async def main():
            registry = make_registry(Count, max_envs=2)
            registry.capacity.reserve(active)
            client = Client()
            client.receive = None  # a client that is refused is not waited for
            await converse(JsonSessions(registry), client, client.receive, {"num_envs": str(count)})
            await registry.stop()
            return client

        client = asyncio.run(main())
        assert error(client.replies[0]) == {
            "message": f"Server at capacity: {active}/2 sessions active. Cannot accept new connections.",
            "code": "CAPACITY_REACHED",
            "active_sessions": active,
            "max_sessions": 2,
        }
        assert client.closed[0] == 1000

    def test_an_env_that_can_not_be_built(self):
        built = []

        def flaky():
            built.append(1)
            if len(built) > 1:
                raise OSError("no licence")
            return Count()

        client = talk(flaky, max_workers=1)
        data = error(client.replies[0])
        assert (data["code"], data["factory_name"]) == ("FACTORY_ERROR", "flaky")
        assert "OSError: no licence" in data["message"]
        assert client.closed[0] == 1000

    @pytest.mark.parametrize("count", ["0", "-1", "x", "1,2"])
    def test_a_bad_number_of_envs(self, count):
        client = talk(Count, query={"num_envs": count})
        assert error(client.replies[0])["errors"][0]["loc"] == ["num_envs"]
        assert client.closed[0] == 1000

    @pytest.mark.parametrize("query", [{"include": "x"}, {"obs_dtype": "float99"}, {"obs_dtype": "{"}, {"render": "2"}])
    def test_bad_options_in_the_query(self, query):
        client = talk(Count, query=query)
        assert code(client.replies[0]) == "VALIDATION_ERROR"
        assert client.closed[0] == 1000

    def test_other_parameters_are_a_proxys(self):
        assert replies(Count, reset(), query={"__sign": "x"}) == [observation([0.0], None)]

    def test_sessions_made_over_http_are_unknown(self):
        client = talk(Count, query={"session_id": "abc"})
        assert error(client.replies[0]) == {"message": "Unknown session_id: abc", "code": "SESSION_ERROR"}

    def test_no_session_while_shutting_down(self):
        async def main():
            registry = make_registry(Count)
            await registry.stop()
            client = Client()
            await converse(JsonSessions(registry), client, client.receive, {})
            return client

        assert code(asyncio.run(main()).replies[0]) == "SESSION_ERROR"

    def test_an_unforeseen_error_while_opening(self, monkeypatch, caplog):
        async def broken(*args):
            raise KeyError("oops")

        monkeypatch.setattr(JsonSession, "open", broken)
        assert error(talk(Count).replies[0]) == {"message": "'oops'", "code": "SESSION_ERROR"}
        assert "could not be opened" in caplog.text

    def test_an_idle_session_is_closed_with_its_connection(self):
        factory, envs = made(Count)

        class Sleeper(Client):
            async def receive(self):
                await self.hung_up.wait()
                raise ConnectionError("closed")

            async def close(self, code, reason):
                await super().close(code, reason)
                self.hung_up.set()

        async def main():
            registry = make_registry(factory, idle_timeout_s=0.01)
            registry.start()
            client = Sleeper()
            client.hung_up = asyncio.Event()
            with pytest.raises(ConnectionError):
                await converse(JsonSessions(registry), client, client.receive, {})
            await registry.stop()
            return client

        assert asyncio.run(main()).closed == (4408, "idle for too long")
        assert envs[-1].calls[-1] == ("close",)

    @pytest.mark.parametrize("message", [reset(), step(), batch_step(0), STATE], ids=lambda message: message["type"])
    def test_a_message_to_a_session_that_has_ended(self, message):
        async def main():
            registry = make_registry(Count)
            client = Client()

            async def receive():
                if client.replies:
                    raise ConnectionError
                await registry.end(next(iter(registry.sessions.values())))
                return json.dumps(message)

            with pytest.raises(ConnectionError):
                await converse(JsonSessions(registry), client, receive, {})
            await registry.stop()
            return client.replies[0]

        assert code(asyncio.run(main())) == "SESSION_EXPIRED"


class TestResets:
    def test_seed_and_options_reach_the_env(self):
        factory, envs = made(Count)
        replies(factory, reset(seed=2**70, options={"level": [1, {"a": None}]}), reset(seed=None))
        assert [call for call in envs[-1].calls if call[0] == "reset"] == [
            ("reset", 2**70, {"level": [1, {"a": None}]}),
            ("reset", None, None),
        ]

    def test_options_that_are_too_deep(self):
        deep = []
        for _ in range(200):
            deep = [deep]
        first, second = replies(Count, reset(options={"a": deep}), reset())
        assert code(first) == "VALIDATION_ERROR"
        assert second == observation([0.0], None)

    def test_a_seed_that_the_env_has_no_use_for(self):
        class Unseeded(Count):
            def reset(self):
                return super().reset()

        first, second = replies(Unseeded, reset(seed=1), reset())
        assert first == observation([0.0], None, seed_ignored=True)
        assert second == observation([0.0], None)


class TestTrimming:
    def kept(self, *messages, **query):
        """The keys that were touched, and the last reply's observation and metadata."""
        factory, envs = made(Robot)
        last = replies(factory, *messages, query=query)[-1]["data"]
        return sorted({key for key, _ in envs[-1].touched}), last["observation"], last.get("metadata")

    def test_nothing_beside_the_space_is_touched(self):
        touched, fields, _ = self.kept(reset(), info_keys="")
        assert touched == ["a", "arm", "b", "camera"]
        assert list(fields) == ["arm", "camera"]

    @pytest.mark.parametrize(
        "trimming, touched",
        [
            ({"include": ["camera"]}, ["camera"]),
            ({"include": ["arm.b", "camera"]}, ["arm", "b", "camera"]),
            ({"exclude": ["arm.a", "camera"]}, ["arm", "b"]),
            ({"include": ["arm"], "exclude": ["arm.b"]}, ["a", "arm"]),
        ],
    )
    def test_in_the_query_and_in_a_reset(self, trimming, touched):
        from_query = self.kept(reset(), info_keys="", **{key: ",".join(names) for key, names in trimming.items()})
        from_reset = self.kept(reset(info_keys=[], **trimming))
        assert from_query == from_reset
        assert from_query[0] == touched

    def test_a_reset_changes_what_it_mentions_from_then_on(self):
        turn = {"type": "step", "data": {"turn": [0, 0], "grip": 0}}
        factory, _ = made(Robot)
        answers = replies(
            factory,
            reset(exclude=["camera"]),
            turn,
            reset(info_keys=["map"]),
            turn,
            reset(exclude=None),
            query={"info_keys": "lives"},
        )
        fields = [list(answer["data"]["observation"]) for answer in answers]
        infos = [list(answer["data"]["metadata"]) for answer in answers]
        assert fields == [["arm"], ["arm"], ["arm"], ["arm"], ["arm", "camera"]]
        assert infos == [["lives"], ["lives"], ["map"], ["map"], ["map"]]

    def test_an_info_that_has_no_json_form_can_be_left_out(self):
        assert code(replies(Robot, reset())[0]) == "SERIALIZATION_ERROR"
        assert self.kept(reset(), info_keys="lives,map")[2] == {"lives": 3, "map": [[1.0, 0.0], [0.0, 1.0]]}

    def test_bad_trimming_changes_nothing(self):
        bad, after = replies(Robot, reset(include=["nose"], exclude=["camera"]), reset(), query={"info_keys": ""})
        assert "'nose' names nothing here" in error(bad)["message"]
        assert list(after["data"]["observation"]) == ["arm", "camera"]

    @pytest.mark.parametrize("dtype", ["float16", {"arm.a": "float16"}])
    def test_dtypes(self, dtype):
        rounded = float(np.float16(0.1))
        query = {"obs_dtype": dtype if isinstance(dtype, str) else json.dumps(dtype), "include": "arm"}
        assert self.kept(reset(), info_keys="", **query)[1]["arm"]["a"] == [rounded, -0.5]
        assert self.kept(reset(obs_dtype=dtype, include=["arm"], info_keys=[]))[1]["arm"]["a"] == [rounded, -0.5]

    def test_a_dtype_that_the_value_does_not_fit(self):
        class Half(Count):
            observation_space = Box(0, 100, (1,), np.float32)

        answer = replies(Half, reset(), query={"obs_dtype": "uint8"}, env_kwargs={"first": 0.5})[0]
        assert code(answer) == "SERIALIZATION_ERROR"


class TestRendering:
    def frames(self, answers):
        return [answer["data"].get("render") for answer in answers]

    def test_only_when_asked_for(self):
        factory, envs = made(Count, render_mode="rgb_array")
        assert self.frames(replies(factory, reset(), step())) == [None, None]
        assert ("render",) not in envs[-1].calls

    @pytest.mark.parametrize("query, first", [({"render": "true"}, reset()), ({}, reset(render=True))])
    def test_frames(self, query, first):
        frames = self.frames(replies(Count, first, step(), reset(render=False), step(), query=query))
        for count, frame in enumerate(frames[:2]):
            assert (frame["dtype"], frame["shape"]) == ("uint8", [2, 3, 3])
            assert base64.b64decode(frame["base64"]) == bytes([count] * 18)
        assert frames[2:] == [None, None]

    def test_frames_of_a_batch(self):
        frames = replies(Count, reset(), batch_step(0, 0, 0, 0), query={"render": "1"})[1]["data"]["results"]
        assert [base64.b64decode(result["render"]["base64"])[0] for result in frames] == [1, 2, 3]

    def test_an_env_is_built_anew_once_for_its_render_mode(self):
        envs = []

        def factory(render_mode=None):
            envs.append(Count(render_mode=render_mode))
            return envs[-1]

        replies(factory, reset(), reset(render=True), reset(render=False), reset(render=True), reset(render=True))
        assert [env.render_mode for env in envs[-2:]] == [None, "rgb_array"]
        assert [call[0] for call in envs[-2].calls] == ["reset", "close"]

    def test_text(self):
        class Ansi(Count):
            metadata = {"render_modes": ["human", "ansi"]}

            def render(self):
                return f"count {self.count} {self.render_mode}"

        assert self.frames(replies(Ansi, reset(render=True), step())) == ["count 0 ansi", "count 1 ansi"]

    @pytest.mark.parametrize("modes", [[], ["human"]])
    def test_an_env_that_can_not(self, modes):
        class Blind(Count):
            metadata = {"render_modes": modes}

        bad, after = replies(Blind, reset(render=True), reset())
        assert "can't be rendered" in error(bad)["message"]
        assert after == observation([0.0], None)
        assert code(replies(Blind, query={"render": "true"})[0]) == "VALIDATION_ERROR"

    @pytest.mark.parametrize("mode", [None, "human"])
    def test_a_factory_without_a_render_mode(self, mode):
        factory, _ = made(Count, render_mode=mode)
        assert code(replies(factory, reset(render=True))[0]) == "VALIDATION_ERROR"

    def test_rendering_that_fails(self):
        class Broken(Count):
            def render(self):
                raise OSError("no display")

        answers = replies(Broken, reset(render=True), step(), STATE)
        assert [error(answer)["message"] for answer in answers[:2]] == ["no display"] * 2
        assert answers[2]["data"]["step_count"] == 1


class TestBatchSteps:
    def test_actions_in_turn(self):
        answers = replies(Count, reset(), batch_step(0, 0), STATE, env_kwargs={"length": 3})
        assert answers[1]["data"] == {"results": [observation([n], 1.0)["data"] for n in (1.0, 2.0)]}
        assert answers[2]["data"]["step_count"] == 2

    def test_they_stop_where_the_episode_ends(self):
        answers = replies(Count, reset(), batch_step(*[0] * 10), STATE, env_kwargs={"length": 3})
        assert [result["done"] for result in answers[1]["data"]["results"]] == [False, False, True]
        assert answers[2]["data"]["step_count"] == 3

    def test_they_stop_where_the_env_fails(self):
        def boom(env):
            raise ValueError("boom42")

        answers = replies(Count, reset(), batch_step(0, 1, 0), STATE, env_kwargs={"special": boom, "length": 9})
        first, second = answers[1]["data"]["results"]
        assert first == observation([1.0], 1.0)["data"]
        assert second == {"error": {"message": "boom42", "code": "EXECUTION_ERROR", "type": "ValueError"}}
        assert answers[2]["data"]["step_count"] == 1

    def test_they_stop_before_the_reply_grows_too_large(self):
        kwargs = {"env_kwargs": {"length": 99, "info": {"long": "x" * 1000}}, "max_message_size_mb": 4000 / 2**20}
        _, answer, state = replies(Count, reset(), batch_step(*[0] * 50), STATE, **kwargs)
        assert len(answer["data"]["results"]) == state["data"]["step_count"] == 3

    def test_all_actions_are_read_before_the_first_is_applied(self):
        *_, bad, state = replies(Count, reset(), batch_step(0, 0, 9), STATE)
        assert code(bad) == "VALIDATION_ERROR"
        assert state["data"]["step_count"] == 0

    def test_they_run_on_the_envs_thread(self):
        threads = []
        special = lambda env: threads.append(threading.current_thread().name)  # noqa: E731
        replies(Count, reset(), step(1), batch_step(1, 1), env_kwargs={"special": special}, max_workers=1)
        assert threads == ["env-worker-0"] * 3


THREE = {"num_envs": "3"}


class TestSeveralEnvs:
    def test_resets_and_steps(self):
        first, second, third = replies(Count, reset(), batch_step(0, 0, 0), batch_step(0, 0, 0), query=THREE)
        assert first == {"type": "observation", "data": {"results": [observation([0.0], None)["data"]] * 3}}
        assert second == {"type": "observation", "data": {"results": [observation([1.0], 1.0)["data"]] * 3}}
        assert third["data"]["results"][2]["observation"] == {"observation": [2.0]}

    def test_seeds_count_up(self):
        factory, envs = made(Count)
        replies(factory, reset(seed=5), reset(seed=7, envs=[2, 0]), query=THREE, max_workers=1)
        seeds = [[call[1] for call in env.calls if call[0] == "reset"] for env in envs[-3:]]
        assert seeds == [[5, 7], [6], [7, 9]]

    def test_step_says_what_to_use(self):
        bad, _, after = replies(Count, step(), reset(), batch_step(0, 0, 0), query=THREE)
        assert "batch_step" in error(bad)["message"]
        assert after["type"] == "observation"

    def test_the_number_of_actions(self):
        bad = replies(Count, reset(), batch_step(0, 0), query=THREE)[1]
        assert "2 action(s) for 3 envs" in error(bad)["message"]

    def test_some_envs_are_reset_in_the_order_given(self):
        length = iter([9, 9, 1, 2, 3])
        answers = replies(
            lambda: Count(next(length)),
            reset(),
            batch_step(0, 0, 0),
            batch_step(0, 0, 0),
            reset(envs=[1, 0], episode_id="new"),
            STATE,
            query=THREE,
            max_workers=1,
        )
        assert len(answers[3]["data"]["results"]) == 2
        states = answers[4]["data"]["results"]
        assert [state["step_count"] for state in states] == [0, 0, 2]
        assert [state["episode_id"] for state in states[:2]] == ["new-0", "new-1"]

    def test_an_env_that_fails_leaves_the_others_alone(self):
        def boom(env):
            raise ValueError("boom42")

        _, answer, after = replies(
            Count, reset(), batch_step(0, 1, 0), batch_step(0, 0, 0), query=THREE, env_kwargs={"special": boom}
        )
        results = answer["data"]["results"]
        assert results[1] == {"error": {"message": "boom42", "code": "EXECUTION_ERROR", "type": "ValueError"}}
        assert results[0] == results[2] == observation([1.0], 1.0)["data"]
        assert [result["observation"]["observation"] for result in after["data"]["results"]] == [[2.0]] * 3

    def test_frames(self):
        def boom(env):
            raise ValueError("boom42")

        query = {**THREE, "render": "true"}
        answer = replies(Count, reset(), batch_step(0, 1, 0), query=query, env_kwargs={"special": boom})[1]
        assert ["render" in result for result in answer["data"]["results"]] == [True, False, True]

    def test_ignored_seeds_are_told_once(self):
        class Unseeded(Count):
            def reset(self):
                return super().reset()

        data = replies(Unseeded, reset(seed=1), query=THREE)[0]["data"]
        assert data["seed_ignored"] is True
        assert len(data["results"]) == 3
