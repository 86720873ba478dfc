"""What a user installs: the wheel, its metadata, and what a bare import loads."""

import configparser
import email
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from openenv_gym.version import __version__

ROOT = Path(__file__).resolve().parents[1]
BASE_REQUIREMENTS = {"gymnasium", "msgspec", "numpy", "pydantic", "websockets"}
EXTRAS = {"all", "dev", "fuzz", "plot", "ray", "sb3", "server", "test"}
HEAVY = {"fastapi", "openenv", "ray", "rich", "stable_baselines3", "starlette", "torch", "typer", "uvicorn"}


def distribution_of(requirement):
    """The normalised name at the front of a requirement or a pin."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def run_python(code, **options):
    """The standard output of `code`, run by a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build inside the checkout would pick up what an earlier one left in build/."""
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("openenv_gym", "server"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, source]
    built = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel, files):
    (name,) = (file for file in files if file.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_adds_one_name_to_site_packages(files):
    assert {file.split("/")[0] for file in files} == {"openenv_gym", f"openenv_gym-{__version__}.dist-info"}


def test_the_wheel_has_the_server_and_the_mark_of_a_typed_package(files):
    assert {"openenv_gym/server/app.py", "openenv_gym/py.typed"} <= files


@pytest.mark.parametrize("folder, installed", [("openenv_gym", "openenv_gym"), ("server", "openenv_gym/server")])
def test_no_file_is_left_out_of_the_wheel(files, folder, installed):
    source = ROOT / folder
    paths = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    expected = {f"{installed}/{path.as_posix()}" for path in paths if "__pycache__" not in path.parts}
    assert expected <= files


def test_the_wheel_works_outside_the_checkout(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import openenv_gym.server as s; print(s.__file__)"
    assert Path(run_python(code, cwd=tmp_path.parent)) == tmp_path / "openenv_gym" / "server" / "__init__.py"


SCRIPT = """
from openenv_gym import RemoteVecEnv
with RemoteVecEnv.local("where:Where") as envs:
    print(envs.reset()[1]["file"][0])
"""
WHERE = """
import gymnasium as gym
import openenv_gym
class Where(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return 0, {"file": openenv_gym.__file__}
"""


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """What `pip install .` leaves: a checkout, and a Python whose copy of the package is another one.

    Other packages are those of this Python, without its .pth files: one of them may lead to this checkout.
    """
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("openenv_gym", "server"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (checkout, checkout / "examples"):
        folder.mkdir(exist_ok=True)
        (folder / "script.py").write_text(SCRIPT)
        (folder / "where.py").write_text(WHERE)
    venv.create(checkout / ".venv", symlinks=True)
    (site,) = (checkout / ".venv").glob("**/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    serve = "import sys\nfrom openenv_gym.__main__ import main\nsys.exit(main())\n"
    (checkout / ".venv" / "bin" / "openenv-gym").write_text(serve)
    return checkout


def in_checkout(installed, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = installed / ".venv" / "bin" / "python"
    return subprocess.Popen(
        [python, *arguments], cwd=installed, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("folder, copy", [("", ""), ("examples", ".venv")], ids=["root", "examples"])
def test_scripts_in_a_checkout_work_after_an_install(installed, folder, copy):
    """A script beside the folder `openenv_gym` finds that one; others find what is installed, and so do its servers."""
    process = in_checkout(installed, str(Path(folder, "script.py")))
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    found = Path(output.strip()).relative_to(installed)
    assert found.parts[0] == (copy or "openenv_gym")


def test_the_command_works_in_a_checkout_after_an_install(installed):
    """With several processes, and an environment of the current folder."""
    process = in_checkout(
        installed, str(Path(".venv/bin/openenv-gym")), "serve", "where:Where", "--workers", "2", "--port", "0"
    )
    try:
        assert process.stdout.readline().startswith("openenv-gym"), process.stderr.read()
    finally:
        process.terminate()
        process.communicate(timeout=100)


def test_the_version_is_the_one_in_version_py(metadata):
    assert metadata["Version"] == __version__


def test_the_readme_is_the_long_description(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode("utf-8").strip() == (ROOT / "README.md").read_text("utf-8").strip()


def test_the_base_needs_exactly_five_distributions(metadata):
    base = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert {distribution_of(line) for line in base} == BASE_REQUIREMENTS
    assert len(base) == len(BASE_REQUIREMENTS)


def test_the_extras_are_these(metadata):
    assert set(metadata.get_all("Provides-Extra")) == EXTRAS


def test_the_command_is_openenv_gym():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert setup["options.entry_points"]["console_scripts"].strip() == "openenv-gym = openenv_gym.__main__:main"


def test_constraints_pin_every_requirement_to_a_version_that_anyone_can_get(metadata):
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []  # no +cpu, no URL
    needed = {distribution_of(line) for line in metadata.get_all("Requires-Dist")} - {"openenv-gym"}
    assert needed - {distribution_of(pin) for pin in pins} == set()


def test_the_changelog_opens_with_unreleased_and_this_version():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[:2] == ["Unreleased", __version__]


def test_a_bare_import_loads_nothing_heavy(tmp_path):
    code = "import sys, openenv_gym; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    assert HEAVY & set(run_python(code, cwd=tmp_path).split()) == set()


def test_every_public_name_exists_and_is_sorted():
    import openenv_gym

    assert [name for name in openenv_gym.__all__ if not hasattr(openenv_gym, name)] == []
    assert sorted(openenv_gym.__all__) == list(openenv_gym.__all__)
    assert len(set(openenv_gym.__all__)) == len(openenv_gym.__all__)
