"""openenv_gym.errors: what each error says, what it is caught as, and that it survives pickling."""

import asyncio
import builtins
import inspect
import multiprocessing
import pickle
import re

import gymnasium.error
import pytest

from openenv_gym import errors
from openenv_gym.errors import (
    ActionError,
    BatchError,
    CapacityError,
    ConnectFailed,
    ConnectionLost,
    FactoryError,
    FleetError,
    LocalProtocolError,
    MessageTooLarge,
    NotAWebSocket,
    OpenEnvGymError,
    OptionError,
    ProtocolError,
    ProtocolVersionError,
    RemoteEnvError,
    RemoteProtocolError,
    ReplyTimeout,
    SessionLost,
    SpaceError,
    ToolError,
    ToolNotFound,
    TransportError,
    Unauthorized,
    batch_error,
    remote_env_error,
)

URL = "ws://host:8000/ws"
LOST = ConnectionLost(URL, "close code 1006")
BAD_VALUE = remote_env_error("EXECUTION_ERROR", "ValueError", "too big", 3)
NO_KEY = remote_env_error("EXECUTION_ERROR", "KeyError", "'a'", 5)

TEXTS = [
    (OpenEnvGymError("it broke"), "it broke"),
    (TransportError("it broke"), "it broke"),
    (ProtocolError("it broke"), "it broke"),
    (LocalProtocolError("`send` isn't possible"), "`send` isn't possible"),
    (RemoteProtocolError("malformed frame"), "malformed frame"),
    (ActionError("3 actions for 2 envs"), "3 actions for 2 envs"),
    (OptionError("unknown option 'x'"), "unknown option 'x'"),
    (
        ConnectFailed(URL, "connection refused"),
        (
            "no server at ws://host:8000/ws (connection refused); "
            "start one with `openenv-gym serve ENV_ID`, or check the URL"
        ),
    ),
    (
        NotAWebSocket(URL, "HTTP 404"),
        "ws://host:8000/ws is not an environment server's WebSocket endpoint (HTTP 404)",
    ),
    (
        Unauthorized(URL, "HTTP 401"),
        "ws://host:8000/ws refused the token (HTTP 401); pass token=… or set OPENENV_GYM_TOKEN to the server's token",
    ),
    (
        Unauthorized(URL, "HTTP 401", False),
        (
            "ws://host:8000/ws needs a token, and none was given (HTTP 401); pass token=… or set OPENENV_GYM_TOKEN to "
            "the server's token"
        ),
    ),
    (
        Unauthorized("ws://host:8000/web/ws", "HTTP 403"),
        (
            "ws://host:8000/web/ws refused the connection (HTTP 403): there is no WebSocket endpoint at /web/ws, or it "
            "refused the token; leave the path away from the server's URL, or pass token=… or set OPENENV_GYM_TOKEN to "
            "the server's token"
        ),
    ),
    (
        Unauthorized("ws://host:8000/web/ws", "HTTP 403", False),
        (
            "ws://host:8000/web/ws refused the connection (HTTP 403): there is no WebSocket endpoint at /web/ws, or it "
            "needs a token; leave the path away from the server's URL, or pass token=… or set OPENENV_GYM_TOKEN to "
            "the server's token"
        ),
    ),
    (
        CapacityError(URL, 6, 8, 4),
        (
            "ws://host:8000/ws has no room for 4 more env(s): 6 of 8 are in use; "
            "raise --max-envs (max_concurrent_envs on an OpenEnv server) or ask for fewer envs"
        ),
    ),
    (
        CapacityError(URL, 8, 8, 2, keeps_sessions=True),
        (
            "ws://host:8000/ws has no room for 2 more env(s): 8 of 8 are in use; "
            "raise --max-envs (max_concurrent_envs on an OpenEnv server) or ask for fewer envs; "
            "an OpenEnv server without session_timeout keeps sessions of killed clients until it is restarted"
        ),
    ),
    (
        CapacityError(URL, 0, 8, 9),
        (
            "ws://host:8000/ws admits 8 env(s) at a time, and 9 were asked for; "
            "raise --max-envs (max_concurrent_envs on an OpenEnv server) or ask for fewer envs"
        ),
    ),
    (
        CapacityError(URL, 0, None, 1),
        (
            "ws://host:8000/ws has no room for 1 more env(s): it is full; "
            "raise --max-envs (max_concurrent_envs on an OpenEnv server) or ask for fewer envs"
        ),
    ),
    (LOST, "the connection to ws://host:8000/ws was lost (close code 1006)"),
    (
        SessionLost(URL, "unknown session"),
        "the session on ws://host:8000/ws is gone (unknown session); its envs start anew at the next reset",
    ),
    (ReplyTimeout("reset", URL, 0.5), "no reply to `reset` from ws://host:8000/ws within 0.5 second(s)"),
    (
        ReplyTimeout("step", URL, 60.0, (0, 1, 2, 5, 7, 8)),
        "no reply to `step` for env 0-2, 5, 7-8 from ws://host:8000/ws within 60 second(s)",
    ),
    (
        MessageTooLarge(12_345_678, 1_048_576, "max_message_size_mb"),
        (
            "a message of 12,345,678 bytes is over the limit of 1,048,576 bytes; "
            "raise max_message_size_mb on both sides, or trim the observation"
        ),
    ),
    (
        MessageTooLarge(None, 10, "max_message_size_mb"),
        "a message is over the limit of 10 bytes; raise max_message_size_mb on both sides, or trim the observation",
    ),
    (
        ProtocolVersionError(1, 2),
        "this side speaks version 1 of the protocol and the peer version 2; upgrade the older one",
    ),
    (RemoteEnvError("SESSION_ERROR", "", "no env"), "the server reported no env (code: SESSION_ERROR)"),
    (BAD_VALUE, "env 3 reported ValueError: too big (code: EXECUTION_ERROR)"),
    (
        remote_env_error("EXECUTION_ERROR", "DependencyNotInstalled", "no pygame", 0),
        "env 0 reported DependencyNotInstalled: no pygame (code: EXECUTION_ERROR); the server's machine lacks it",
    ),
    (
        RemoteEnvError("EXECUTION_ERROR", "MyError", "100 %s", 0, "Traceback …\nMyError"),
        "env 0 reported MyError: 100 %s (code: EXECUTION_ERROR)\n\nRemote traceback:\nTraceback …\nMyError",
    ),
    (ToolError("add", "x is no number"), "the tool 'add' failed (execution_error): x is no number"),
    (ToolError("add", "Missing required argument"), "the tool 'add' failed (invalid_args): Missing required argument"),
    (ToolNotFound("ad", "Unknown tool: 'ad'"), "the environment has no tool 'ad': Unknown tool: 'ad'"),
    (
        BatchError({3: BAD_VALUE, 5: NO_KEY}),
        (
            "2 envs failed: env 3 reported ValueError: too big (code: EXECUTION_ERROR); "
            "env 5 reported KeyError: 'a' (code: EXECUTION_ERROR)"
        ),
    ),
    (
        BatchError({row: remote_env_error("VALIDATION_ERROR", "", "no such field", row) for row in (0, 1, 2, 4)}),
        "4 envs failed: env 0-2, 4 reported no such field (code: VALIDATION_ERROR)",
    ),
    (FleetError("no such fleet"), "no such fleet"),
    (FactoryError("CartPole-v9", "unknown id"), "can't create the environment 'CartPole-v9': unknown id"),
    (FactoryError.told("X", "no such id"), "can't create the environment 'X': no such id"),
    (FactoryError.told("X", "can't create the environment 'X': why"), "can't create the environment 'X': why"),
    (SpaceError("doesn't fit"), "doesn't fit"),
    (SpaceError("doesn't fit", path="robot.0.cam"), "robot.0.cam: doesn't fit"),
]

EVERY_TEXT = pytest.mark.parametrize("error, text", TEXTS, ids=[type(error).__name__ for error, _ in TEXTS])
CLASSES = {name: value for name in errors.__all__ if isinstance(value := getattr(errors, name), type)}
WELL_KNOWN = {
    name: value
    for module in (gymnasium.error, builtins)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Exception) and name != "ExceptionGroup"
}
EVERY_WELL_KNOWN = pytest.mark.parametrize("name", sorted(WELL_KNOWN))


def facts(error):
    """An error's attributes, with errors among them as texts, which can be compared."""
    return {key: repr(value) for key, value in vars(error).items()}


class TestEachError:
    @EVERY_TEXT
    def test_says_exactly_this(self, error, text):
        assert str(error) == text

    @EVERY_TEXT
    def test_survives_pickling(self, error, text):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), facts(copy)) == (text, facts(error))

    def test_is_in_the_table(self):
        assert {type(error) for error, _ in TEXTS} >= set(CLASSES.values())

    def test_is_exported(self):
        defined = {name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__}
        assert {name for name in defined if not name.startswith("_")} == set(errors.__all__)
        assert errors.__all__ == sorted(errors.__all__, key=lambda name: (name.islower(), name))

    def test_is_what_the_tree_says(self):
        tree = re.findall(r"^ {4}([│├└─ ]*)(\w+)(?: \((\w+)\))?", inspect.getdoc(errors), re.MULTILINE)
        above = {}
        for branch, name, builtin in tree:
            level = len(branch) // 3
            above[level] = CLASSES[name]
            assert CLASSES[name].__bases__[0] is above.get(level - 1, Exception)
            assert issubclass(CLASSES[name], getattr(builtins, builtin or "Exception"))
        assert sorted(name for _, name, _ in tree) == sorted(CLASSES)

    @pytest.mark.parametrize("caught_as", [TimeoutError, multiprocessing.TimeoutError, asyncio.TimeoutError, OSError])
    def test_a_timeout_is_one_for_everybody(self, caught_as):
        assert isinstance(ReplyTimeout("step", URL, 1.0), caught_as)


class TestRemoteEnvError:
    @EVERY_WELL_KNOWN
    def test_is_of_the_remote_class(self, name):
        error = remote_env_error("EXECUTION_ERROR", name, "why", 2, "trace")
        assert isinstance(error, WELL_KNOWN[name])
        assert isinstance(error, RemoteEnvError)
        assert error.args == ("EXECUTION_ERROR", name, "why", 2, "trace")
        assert str(error).startswith(f"env 2 reported {name}: why")

    @EVERY_WELL_KNOWN
    def test_survives_pickling(self, name):
        error = remote_env_error("EXECUTION_ERROR", name, "why", 2)
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert facts(copy) == facts(error)

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "MyError",
            "SystemExit",  # would end the learner
            "KeyboardInterrupt",
            "GeneratorExit",
            "BaseException",
            "Exception",
            "RuntimeError",
            "ExceptionGroup",
            "int",
            "print",
            "__import__",
            "os.system",
            "annotations",
            "Error ",
            "\0",
            "\ud800",
        ],
    )
    def test_is_of_no_other_class(self, name):
        assert type(remote_env_error("EXECUTION_ERROR", name, "why")) is RemoteEnvError

    def test_one_class_for_each_name(self):
        assert type(remote_env_error("A", "ValueError", "b")) is type(remote_env_error("C", "ValueError", "d"))


class TestBatchError:
    @pytest.mark.parametrize(
        "names, shared",
        [
            (["ValueError", "ValueError"], ValueError),
            (["UnicodeError", "ValueError"], ValueError),
            (["KeyError", "IndexError", "KeyError"], LookupError),
            (["ResetNeeded", "ResetNeeded"], gymnasium.error.ResetNeeded),
            (["ResetNeeded", "InvalidAction"], gymnasium.error.Error),
            (["NotImplementedError", "NotImplementedError"], NotImplementedError),
        ],
    )
    def test_is_of_the_class_that_the_errors_share(self, names, shared):
        failures = {row: remote_env_error("EXECUTION_ERROR", name, "why", row) for row, name in enumerate(names)}
        error = batch_error(failures)
        assert isinstance(error, BatchError)
        assert isinstance(error, shared)
        assert error.failures is failures
        assert re.match(rf"{len(names)} envs failed: env 0.* reported ", str(error))

    def test_is_of_the_class_that_errors_of_this_side_share(self):
        assert isinstance(batch_error({0: LOST, 1: SessionLost(URL, "gone")}), ConnectionError)

    @pytest.mark.parametrize("names", [["ValueError", "KeyError"], ["MyError", "MyError"], ["RuntimeError", "MyError"]])
    def test_is_of_no_class_that_one_is_not(self, names):
        error = batch_error(
            {row: remote_env_error("EXECUTION_ERROR", name, "why", row) for row, name in enumerate(names)}
        )
        assert type(error) is BatchError

    def test_survives_pickling(self):
        error = batch_error({1: BAD_VALUE, 4: BAD_VALUE})
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert isinstance(copy, ValueError)
        assert list(copy.failures) == [1, 4]
        assert facts(copy.failures[4]) == facts(BAD_VALUE)
