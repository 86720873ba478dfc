"""The architecture as a test: which module may import which, read from the source.

Two ladders stand on one base: the client's modules, and the server's (`server.*`). A module imports only from lower
rungs, and the ladders meet only in the base. The pure modules reach no I/O, so that the rules of a session are tested
without a network. To change the architecture, change the tables below.

A module is named as inside the package: `codec`, `server.app`; `server` is server/__init__.py and `""` is
openenv_gym/__init__.py. A module that became a folder keeps its name and its rung: `codec/` and all in it are `codec`,
as long as no table names one of its files, such as `codec.binary`.

Counted are imports everywhere in a file, in functions too, and `importlib.import_module("...")`. Not counted are
imports for the type checker (`if TYPE_CHECKING:`), nor that Python runs openenv_gym/__init__.py before any module.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
SOURCES = {"openenv_gym": ROOT / "openenv_gym", "openenv_gym.server": ROOT / "server"}

LADDER = [  # the lowest rung first
    {
        "display",
        "errors",
        "extras",
        "infos",
        "interpreter",
        "leftovers",
        "loop",
        "messages",
        "refusals",
        "registered",
        "reset_arguments",
        "traffic",
        "version",
    },
    {"server.coroutines", "server.counts", "server.drawing", "server.intercom", "server.logs"},
    {"outage", "server.disclosure", "server.outlet", "server.timings", "server.websocket"},
    {"action_masks", "codec", "dial", "field_spaces", "images", "specs", "link", "retry", "spaces", "stats"},
    {"launcher", "observation_mode", "rendering", "slices", "sticky_options", "streams"},
    {"placement"},
    {"server.capacity", "server.executor", "server.settings"},
    {"inference", "jsonable", "leaf_values", "openenv_sessions", "server.gate"},
    {"choices", "server.openenv_values"},
    {"server.hosted_vector", "server.openenv_env"},
    {"server.adapters"},
    {
        "actions",
        "asking",
        "batching",
        "json_channel",
        "json_values",
        "protocol",
        "server.admission",
        "server.mcp",
        "server.siblings",
        "server.slot",
        "server.space_schemas",
    },
    {"server.tools", "server.widgets"},
    {"json_form", "server.access", "server.encoding", "server.json_form", "server.openenv_messages", "server.probe"},
    {
        "batch_link",
        "discovery",
        "json_link",
        "server.exact_messages",
        "server.hosting",
        "server.json_results",
        "server.page",
        "server.vector_encoding",
    },
    {"legs"},
    {"shard_flights"},
    {"shard"},
    {"resharding"},
    {"opening", "server.openenv_form"},
    {"notices", "outcomes", "pool", "server.slots", "sync_client"},
    {"flights", "server.flights"},
    {"client", "options", "rollout", "server.crew", "server.vector_slots"},
    {"server.session"},
    {"server.registry"},
    {"server.choosing"},
    {"server.json_choices"},
    {"server.batch_dialect", "server.json_session", "server.metrics", "server.overview", "server.run"},
    {"server.json_sessions", "server.stateless", "server.tasks", "server.web"},
    {"server.harness", "server.mcp_endpoint", "server.openenv_routes"},
    {"server.openenv_dialect"},
    {"server.app"},
    {"server", "server.parent", "server.supervisor"},
    {"server.child", "server.process"},
    {"local", "tool_client"},
    {"backend"},
    {"turns"},
    {"vector_calls"},
    {"first_ready"},
    {"vector_ready"},
    {"vector_env"},
    {"env", "sb3"},
    {"examination"},
    {"doctor", "fleet"},
    {"bench", "demo"},
    {"bench_plot"},
    {"commands"},
    {"cli"},
    {"", "__main__"},
]

# The base of both ladders, and the bridges between them. The rest is the server's or the client's, by its name.
BASE = {"errors", "infos", "messages", "version", "codec", "spaces", "batching", "json_values", "jsonable", "json_form"}
BASE |= {
    "action_masks",
    "actions",
    "choices",
    "extras",
    "field_spaces",
    "images",
    "inference",
    "interpreter",
    "leaf_values",
    "protocol",
    "refusals",
    "registered",
}
BRIDGES = {"fleet", "local", "cli", "commands", "demo", "__main__"}
MAY_IMPORT = {
    "base": {"base"},
    "server": {"base", "server"},
    "client": {"base", "client", "bridge"},
    "bridge": {"base", "client", "bridge", "server"},
}

PURE = BASE | {"server.access", "server.adapters", "server.encoding", "server.json_form", "server.json_results"}
PURE |= {
    "server.counts",
    "server.disclosure",
    "server.drawing",
    "server.gate",
    "server.openenv_env",
    "server.openenv_form",
    "server.openenv_values",
    "server.page",
    "server.slot",
    "server.slots",
    "server.timings",
    "server.widgets",
}
IO = {"asyncio", "concurrent", "fastapi", "socket", "threading", "uvicorn", "websockets"}
IO_EXCUSED = {
    ("server.drawing", "threading"): "one lock, because pygame isn't thread-safe; it starts no thread",
    ("server.coroutines", "asyncio"): "runs the coroutines of async envs, and opens nothing by itself",
    ("errors", "asyncio"): "only for the class asyncio.TimeoutError, which Python 3.10 doesn't have elsewhere",
}

# A foreign package -> the only modules that import it.
ONLY_IN = {
    "fastapi": {"server.app", "server.openenv_routes"},
    "starlette": {"server.web"},  # the page's routes; FastAPI's parameters and schemas would be of no use there
    "jinja2": {"server.web"},
    "stable_baselines3": {"sb3", "demo"},
    "torch": {"demo"},
    "openenv": set(),
    "ray": {"fleet"},
}

# A module X is proven by tests/test_X.py, server.X by tests/server/test_X.py; these by another file.
PROVEN_BY = {
    "": "test_packaging.py",
    "__main__": "test_cli.py",
    "bench_plot": "test_bench.py",
    "commands": "test_cli.py",
    "version": "test_packaging.py",
    "traffic": "test_stats.py",
    "examination": "test_doctor.py",
    "turns": "test_misuse.py",
    "notices": "test_rollout.py",
    "outcomes": "test_rollout.py",
    "vector_calls": "test_vector_env.py",
    "sync_client": "test_client.py",
    "vector_ready": "test_first_ready.py",
    "server": "server/test_app.py",
    "choices": "test_inference.py",
    "field_spaces": "test_inference.py",
    "leaf_values": "test_batching.py",
    "refusals": "test_json_channel.py",
    "registered": "test_local.py",
    "legs": "test_resharding.py",
    "shard": "test_resharding.py",
    "shard_flights": "test_resharding.py",
    "streams": "test_flights.py",
    "server.coroutines": "server/test_openenv_env.py",
    "server.drawing": "test_rendering.py",
    "server.exact_messages": "server/test_openenv_transcripts.py",
    "server.hosting": "server/test_openenv_hosting.py",
    "server.parent": "server/test_child.py",
    "server.process": "server/test_supervisor.py",
    "server.space_schemas": "test_json_values.py",
    "server.hosted_vector": "server/test_vector_slots.py",
    "server.vector_encoding": "server/test_vector_slots.py",
    "server.openenv_form": "server/test_openenv_hosting.py",
    "server.json_choices": "server/test_openenv_dialect.py",
    "server.json_form": "server/test_openenv_dialect.py",
    "server.json_results": "server/test_openenv_dialect.py",
    "server.crew": "server/test_session.py",
    "server.json_session": "server/test_openenv_dialect.py",
    "server.openenv_messages": "server/test_openenv_dialect.py",
    "server.openenv_values": "server/test_openenv_env.py",
    "server.openenv_routes": "server/test_tasks.py",
    "server.stateless": "server/test_app.py",
}

# (test file, function) -> why it must sleep. To wait, use an event or a condition with a time-out; environments that
# are slow on purpose live in tests/helpers*.py, which isn't searched.
SLEEP_ALLOWED: dict[tuple[str, str], str] = {}

RUNG = {module: rung for rung, modules in enumerate(LADDER) for module in modules}


class Imports(NamedTuple):
    """What a source imports: absolute dotted names, and how many imports are relative."""

    names: set[str]
    relative: int


def read_imports(source, filename="<source>"):
    """The imports of `source`; `from a import b` is read as `a.b`."""
    names, relative = set(), 0
    nodes = [ast.parse(source, filename)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            relative += 1
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"importlib.import_module", "import_module"}:
            names |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
        nodes += ast.iter_child_nodes(node)
    return Imports(names, relative)


def find_modules():
    """Each module's name inside the package -> its path."""
    modules = {}
    for package, folder in SOURCES.items():
        for path in folder.rglob("*.py"):
            parts = [*package.split("."), *path.relative_to(folder).with_suffix("").parts]
            modules[".".join(parts[1:]).removesuffix("__init__").rstrip(".")] = path
    return modules


MODULES = find_modules()
IMPORTS = {module: read_imports(path.read_text("utf-8"), path) for module, path in MODULES.items()}
TEST_FILES = sorted(
    path.relative_to(TESTS).as_posix() for glob in ("test_*.py", "conftest.py") for path in TESTS.rglob(glob)
)
EVERY_MODULE = pytest.mark.parametrize("module", sorted(MODULES))


def unit_of(module):
    """The name in LADDER that `module` belongs to: itself, or the folder that it is in."""
    if module in RUNG or module.removeprefix("server.").count(".") == 0:
        return module
    return unit_of(module.rpartition(".")[0])


def side_of(module):
    """One of the keys of MAY_IMPORT."""
    unit = unit_of(module)
    if unit in BASE or unit in BRIDGES:
        return "base" if unit in BASE else "bridge"
    return "server" if unit.partition(".")[0] == "server" else "client"


def own_imports(module):
    """The modules of this package that `module` imports."""
    found = set()
    for name in IMPORTS[module].names:
        if name.partition(".")[0] == "openenv_gym":
            inner = name.removeprefix("openenv_gym").removeprefix(".")
            while inner and inner not in MODULES:  # the last parts are names in a module, not modules
                inner = inner.rpartition(".")[0]
            found.add(inner)
    return found - {module}


def foreign_imports(module):
    """The top-level names of other packages that `module` imports."""
    return {name.partition(".")[0] for name in IMPORTS[module].names} - {"openenv_gym"}


def reachable(module):
    """`module`, and all that it imports from this package, directly or through others."""
    seen, todo = set(), [module]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo += own_imports(current)
    return seen


@EVERY_MODULE
def test_every_module_stands_on_a_rung(module):
    assert unit_of(module) in RUNG, f"give {module} a rung in LADDER"


def test_no_module_stands_on_two_rungs():
    assert sum(map(len, LADDER)) == len(RUNG)


@EVERY_MODULE
def test_imports_go_down(module):
    unit = unit_of(module)
    for imported in map(unit_of, own_imports(module)):
        below = RUNG.get(imported, -1) < RUNG.get(unit, len(LADDER))
        assert imported == unit or below, f"{module} imports {imported}, which isn't below it"


@EVERY_MODULE
def test_the_ladders_meet_only_in_the_base(module):
    for imported in own_imports(module):
        assert side_of(imported) in MAY_IMPORT[side_of(module)], f"{module} imports {imported}, from the other ladder"


@EVERY_MODULE
def test_pure_modules_reach_no_io(module):
    if unit_of(module) in PURE:
        for reached in reachable(module):
            found = {name for name in foreign_imports(reached) & IO if (unit_of(reached), name) not in IO_EXCUSED}
            assert not found, f"{module} is pure, but {reached} imports {found}"


@EVERY_MODULE
def test_foreign_packages_stay_where_they_belong(module):
    for package in foreign_imports(module) & ONLY_IN.keys():
        assert unit_of(module) in ONLY_IN[package], f"{module} imports {package}"


@EVERY_MODULE
def test_gymnasiums_logger_is_called_in_one_place(module):
    """It formats what it is given with %, so that an address or another's text would break it."""
    source = MODULES[module].read_text("utf-8")
    assert module == "notices" or not re.search(r"gym(nasium)?\.logger|gymnasium import .*logger", source)


@EVERY_MODULE
def test_imports_are_absolute(module):
    assert IMPORTS[module].relative == 0


@EVERY_MODULE
def test_every_module_has_its_test(module):
    unit = unit_of(module)
    folder, _, name = unit.rpartition(".")
    path = PROVEN_BY.get(unit, f"{folder}/test_{name}.py".lstrip("/"))
    assert (TESTS / path).is_file(), f"{module} needs tests/{path}"


def test_the_tables_name_only_what_exists():
    units = set(map(unit_of, MODULES))
    assert RUNG.keys() - units == set()
    assert (BASE | BRIDGES | PURE | PROVEN_BY.keys()) - units == set()
    assert {(unit, name) for unit, name in IO_EXCUSED if name not in foreign_imports(unit)} == set()


# Modules that import what a caller names: on a command line, or to `create_app`. None of them reads what peers send.
IMPORTS_BY_NAME = {"commands.bench", "commands.common", "commands.serve", "server.adapters", "server.parent"}


@EVERY_MODULE
def test_no_module_runs_what_a_peer_sends(module):
    assert (
        foreign_imports(module) & {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve"}
        == set()
    )
    calls = find_evaluations(MODULES[module].read_text("utf-8"))
    assert calls == ({"import_module"} if module in IMPORTS_BY_NAME else set())


def find_evaluations(source):
    """The functions called in `source` that run, or import, what they are given."""
    names = {
        ast.unparse(node.func).rpartition("importlib.")[2]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
    }
    return names & {"eval", "exec", "compile", "__import__", "import_module", "np.load"}


def test_tests_have_no_packages():
    assert list(TESTS.rglob("__init__.py")) == []


def find_sleeps(source):
    """(function, line) of each call that sleeps; `asyncio.sleep(0)` only lets others run."""
    found = []

    def visit(node, function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        elif isinstance(node, ast.Call) and re.match(r"([\w.]+\.)?sleep\((?!0\))", ast.unparse(node)):
            found.append((function, node.lineno))
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), "")
    return found


@pytest.mark.parametrize("name", TEST_FILES)
def test_no_test_sleeps(name):
    sleeps = find_sleeps((TESTS / name).read_text("utf-8"))
    lines = [line for function, line in sleeps if (name, function) not in SLEEP_ALLOWED]
    assert lines == [], "wait for an event instead"


class TestTheReadersThemselves:
    """A reader that finds nothing would let everything pass."""

    @pytest.mark.parametrize(
        "source, names",
        [
            ("import a.b as c, d", {"a.b", "d"}),
            ("from a import b, c", {"a.b", "a.c"}),
            ("def f():\n    import a", {"a"}),
            ("try:\n    import a\nexcept ImportError:\n    import b", {"a", "b"}),
            ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", {"b"}),
            ("if typing.TYPE_CHECKING:\n    import a", set()),
            ("importlib.import_module('a.b')", {"a.b"}),
        ],
    )
    def test_imports(self, source, names):
        assert read_imports(source) == Imports(names, 0)

    def test_evaluations(self):
        source = "eval('1')\nre.compile('a')\ndef f(): importlib.import_module(exec(a))"
        assert find_evaluations(source) == {"eval", "exec", "import_module"}

    def test_relative_imports(self):
        assert read_imports("from . import a\nfrom ..b import c") == Imports(set(), 2)

    @pytest.mark.parametrize(
        "module, unit",
        [
            ("codec", "codec"),
            ("codec.binary", "codec"),
            ("server.app", "server.app"),
            ("server.adapters.vector", "server.adapters"),
            ("server.unknown", "server.unknown"),
            ("unknown", "unknown"),
            ("", ""),
        ],
    )
    def test_units(self, module, unit):
        assert unit_of(module) == unit

    @pytest.mark.parametrize(
        "source, found",
        [
            ("def f():\n    time.sleep(1)", [("f", 2)]),
            ("async def f():\n    await asyncio.sleep(0.1)", [("f", 2)]),
            ("from time import sleep\nsleep(x)", [("", 2)]),
            ("async def f():\n    await asyncio.sleep(0)", []),
        ],
    )
    def test_sleeps(self, source, found):
        assert find_sleeps(source) == found
