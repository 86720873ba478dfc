"""The page over HTTP, and in a real browser."""

import contextlib
import json
import re
import shutil
import threading

import gymnasium as gym
import httpx
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text
from helpers_envs import raiser
from helpers_server import running
from helpers_wait import LIMIT_S

from openenv_gym import LocalServer, RemoteVecEnv
from openenv_gym.server import create_app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
browser_test = pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: apt-get install chromium")
TOKEN = "s3cret-of-the-page"


class Arm(gym.Env):
    """An action of many kinds, which the test reads back from the observation."""

    observation_space = Dict({"turn": Box(-9, 9, (2, 2)), "text": Text(99)})
    action_space = Dict(
        {"turn": Box(-1, 1, (2, 2)), "grip": Discrete(3), "on": MultiBinary(2), "word": Text(9, charset="abc")}
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"turn": np.zeros((2, 2), np.float32), "text": f"seed {seed}"}, {}

    def step(self, action):
        text = f"{action['grip']} {list(map(int, action['on']))} {action['word']}"
        return {"turn": np.asarray(action["turn"], np.float32), "text": text}, 0.5, False, False, {}


@pytest.fixture(scope="module")
def cartpole():
    with running(create_app("CartPole-v1", token=TOKEN, max_envs=12)) as url:
        yield url


class TestHttp:
    def test_the_form_is_shown_to_strangers_and_tells_nothing(self, cartpole):
        answer = httpx.get(f"{cartpole}/web")
        assert answer.status_code == 200
        assert 'type="password"' in answer.text
        assert "Try it" not in answer.text
        assert TOKEN not in answer.text
        for path in ("/web/events", "/web/frames/x/0", "/metrics"):
            assert httpx.get(cartpole + path).status_code == 401

    def test_the_printed_address_leads_a_browser_to_the_form(self, cartpole):
        answer = httpx.get(cartpole, follow_redirects=True)
        assert (answer.status_code, answer.url.path) == (200, "/web")
        assert 'type="password"' in answer.text

    def test_signing_in_and_out(self, cartpole):
        own = {"origin": cartpole}
        wrong = httpx.post(f"{cartpole}/web", data={"token": "wrong"}, headers=own)
        assert wrong.status_code == 401
        assert "set-cookie" not in wrong.headers
        assert (
            httpx.post(f"{cartpole}/web", data={"token": TOKEN}, headers={"origin": "http://evil.org"}).status_code
            == 403
        )
        with httpx.Client(base_url=cartpole) as client:
            answer = client.post("/web", data={"token": TOKEN}, headers=own)
            assert (answer.status_code, answer.headers["location"]) == (303, "/web")
            cookie = answer.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert TOKEN not in cookie
            assert "Try it" in client.get("/web").text
            assert client.get("/metrics").status_code == 200
            assert client.post("/reset").status_code == 401  # a cookie alone changes nothing
            assert client.post("/reset", headers=own).status_code == 200
            assert client.post("/web/sign-out", headers=own).status_code == 303
            assert "Try it" not in client.get("/web").text

    @pytest.mark.parametrize("body", [b"", b"token", b"token=%ff%00", b"\xff" * 99999, b"token=" + b"a" * 99999])
    def test_odd_forms(self, cartpole, body):
        assert httpx.post(f"{cartpole}/web", content=body).status_code == 401

    def test_the_policy_is_strict_and_the_page_needs_no_exception(self, cartpole):
        page = httpx.get(f"{cartpole}/web", headers={"authorization": f"Bearer {TOKEN}"})
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "//" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert (
            re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=|https?://", page.text.partition("About")[0])
            == []
        )

    def test_one_look_each_second_while_somebody_looks(self, cartpole):
        with httpx.stream("GET", f"{cartpole}/web/events", headers={"authorization": f"Bearer {TOKEN}"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = (line for line in stream.iter_lines() if line)
            looks = [json.loads(next(lines).removeprefix("data: ")) for _ in range(2)]
        assert [look["max_envs"] for look in looks] == [12, 12]

    def test_a_stream_does_not_hold_up_the_end(self, monkeypatch):
        monkeypatch.setattr("openenv_gym.server.web._PERIOD_S", LIMIT_S)
        with running(create_app("CartPole-v1")) as url:
            stream = httpx.stream("GET", f"{url}/web/events", timeout=30)
            lines = stream.__enter__().iter_lines()
            next(lines)
        with contextlib.suppress(httpx.HTTPError):
            assert len(list(lines)) < 5
        stream.__exit__(None, None, None)

    def test_it_can_be_left_out(self):
        with running(create_app("CartPole-v1", web=False)) as url:
            for path in ("/web", "/web/events", "/web/static/page.js", "/"):
                assert httpx.get(url + path).status_code == 404
            assert httpx.post(f"{url}/reset", headers={"origin": url}).status_code == 403

    def test_what_an_env_says_is_no_markup(self):
        with running(create_app("CartPole-v1", env_name="<script>alert(1)</script>")) as url:
            assert "<script>alert" not in httpx.get(f"{url}/web").text


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Open pages, of which none may complain or ask another host for anything."""
    problems = []
    with contextlib.ExitStack() as stack:

        def visit(url, **options):
            context = browser.new_context(**options)
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(15_000)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda said: said.type in ("error", "warning") and problems.append(said.text))
            page.on("request", lambda asked: asked.url.startswith((url, "data:")) or problems.append(asked.url))
            page.goto(f"{url}/web")
            return page

        yield visit
    assert problems == []


def sign_in(page, token=TOKEN):
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")
    page.locator("#link.live").wait_for()


@contextlib.contextmanager
def training(url, token=TOKEN, **options):
    """A learner that steps as long as this lasts."""
    end = threading.Event()

    def learn():
        with RemoteVecEnv(url, 4, token=token, **options) as envs:
            envs.reset(seed=1)
            while not end.wait(0.002):
                envs.step(np.zeros(4, np.int64))

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@browser_test
class TestInABrowser:
    def test_it_shows_a_running_training_and_its_frames(self, visit, cartpole):
        page = visit(cartpole)
        sign_in(page)
        with training(cartpole, render_mode="rgb_array"):
            row = page.locator("#rows tr[data-name]")
            row.get_by_text("active").wait_for()
            assert row.count() == 1
            assert page.locator("#envs").text_content() == "4"
            page.wait_for_function("Number(document.getElementById('steps_per_s').textContent.replace(',', '')) > 10")
            assert re.fullmatch(r"[\d.]+ (µs|ms|s)", page.locator("#p50").text_content())
            page.get_by_text(re.compile(r"env \d+ %")).wait_for()
            row.get_by_role("button", name="Watch").click()
            page.locator("#watch-frame").wait_for()
            page.wait_for_function("document.getElementById('watch-frame').naturalWidth === 600")
        page.get_by_text("No sessions now").wait_for()

    def test_an_env_is_tried_with_the_keyboard_alone(self, visit, cartpole):
        page = visit(cartpole)
        # autofocus is given when the page is first drawn, which may be after it was loaded.
        page.wait_for_function("document.activeElement.id === 'token'")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        page.locator("#link.live").wait_for()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # the link that skips to "Try it"
        page.wait_for_function("location.hash === '#try'")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "reset"
        page.keyboard.press("Enter")
        page.get_by_text("The episode begins.").wait_for()
        page.locator("#canvas").wait_for()
        for _ in range(3):  # seed, close, the first action
            page.keyboard.press("Tab")
        for step in range(1, 4):
            page.keyboard.press("Enter")
            page.get_by_text(f"Step {step}: reward 1.").wait_for()
        assert page.locator("#r-return").text_content() == "3"
        for step in range(4, 30):
            page.keyboard.press("Enter")
            page.get_by_text(f"Step {step}: reward 1.").wait_for()
            if "episode is over" in page.locator("#said").text_content():
                break
        page.get_by_text("The episode is over, with a return of").wait_for()
        page.get_by_role("button", name="Close").click()
        page.get_by_text("Closed. Reset to begin again.").wait_for()
        page.get_by_text("No sessions now").wait_for()

    def test_a_phone_needs_no_scrolling_sideways(self, visit, cartpole):
        page = visit(cartpole, viewport={"width": 360, "height": 700}, color_scheme="dark", has_touch=True)
        sign_in(page)
        with training(cartpole):
            page.locator("#rows tr[data-name]").wait_for()
            page.get_by_role("button", name="Reset").tap()
            page.get_by_text("The episode begins.").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") == 360
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 21, 20)"

    def test_several_processes_are_shown_as_one_server(self, visit):
        with (
            LocalServer("CartPole-v1", workers=2) as server,
            training(server.url, server.token, render_mode="rgb_array"),
        ):
            page = visit(server.url)
            sign_in(page, server.token)
            rows = page.locator("#rows tr[data-name]")
            rows.nth(1).wait_for()
            assert page.get_by_text("in 2 processes").is_visible()
            assert page.locator("#envs").text_content() == "4"
            assert sorted(rows.locator("td[data-label=Process]").all_text_contents()) == ["0", "1"]
            frame = page.locator("#watch-frame")
            for row in rows.all():
                row.get_by_role("button", name="Watch").click()
                frame.wait_for()
                assert frame.get_attribute("src").startswith("data:image/png")
                page.get_by_role("button", name="Stop").click()
                frame.wait_for(state="hidden")
            page.get_by_role("button", name="Reset").click()
            page.get_by_text("The episode begins.").wait_for()
            rows.nth(2).wait_for()
            page.close()  # before its server ends

    def test_actions_of_all_kinds(self, visit):
        with running(create_app(Arm)) as url:
            page = visit(url)
            page.locator("#link.live").wait_for()
            page.get_by_label("Seed").fill("7")
            page.get_by_role("button", name="Reset").click()
            page.get_by_text('text: "seed 7"').wait_for()
            page.get_by_label("turn[0, 1]", exact=True).fill("0.5")
            page.get_by_label("turn[1, 0], slider").fill("-1")
            page.get_by_label("grip").select_option("2")
            page.get_by_label("on[1]").check()
            page.get_by_label("word").fill('"cab"')
            page.get_by_role("button", name="Step").click()
            page.get_by_text("Step 1: reward 0.5.").wait_for()
            seen = page.locator("#observation").text_content()
            assert "[[0, 0.5], [-1, 0]]" in seen
            assert "2 [0, 1] cab" in seen
            page.get_by_label("word").fill("cab")
            page.get_by_role("button", name="Step").click()
            page.get_by_text("This is no JSON").wait_for()
            page.get_by_label("word").fill('"xyz"')
            page.get_by_role("button", name="Step").click()
            page.locator("#said.problem", has_text="word").wait_for()

    def test_what_cannot_be_drawn_is_played_without_frames(self, visit, monkeypatch):
        lack = gym.error.DependencyNotInstalled("pygame is not installed")
        monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.render", raiser(lack))
        with running(create_app("CartPole-v1")) as url:
            page = visit(url)
            page.locator("#link.live").wait_for()
            for _ in range(2):
                page.get_by_role("button", name="Reset").click()
                page.get_by_text("The episode begins. There are no frames: pygame is not installed").wait_for()
                page.get_by_role("button", name="1", exact=True).click()
                page.get_by_text("Step 1: reward 1.").wait_for()
                page.get_by_role("button", name="Close").click()
                page.get_by_text("Closed. Reset to begin again.").wait_for()

    def test_a_reset_that_fails_with_and_without_frames_says_why_once(self, visit, monkeypatch):
        class Lost(gym.Wrapper):
            def reset(self, **kwargs):
                raise ValueError("no map42")

        with running(
            create_app(lambda render_mode=None: Lost(gym.make("CartPole-v1", render_mode=render_mode)))
        ) as url:
            page = visit(url)
            page.locator("#link.live").wait_for()
            page.get_by_role("button", name="Reset").click()
            page.locator("#said.problem", has_text=re.compile("^no map42$")).wait_for()

    def test_an_openenv_environment_is_tried(self, visit):
        helpers_openenv = pytest.importorskip("helpers_openenv")  # which takes long to import
        every = (helpers_openenv.Every, helpers_openenv.EveryAction, helpers_openenv.EveryObservation)
        with running(create_app(*every)) as url:
            page = visit(url)
            page.locator("#link.live").wait_for()
            action = page.get_by_label("action")
            begin = json.loads(action.input_value())  # what the schema suggests is an action that the env takes
            assert (begin["turn"], begin["gear"], begin["arm"]["joint"]) == ("left", 1, 0)
            page.get_by_role("button", name="Reset").click()
            page.get_by_text("The episode begins.").wait_for()
            page.get_by_role("button", name="Step").click()
            page.get_by_text("Step 1: reward 1.").wait_for()
            action.fill(json.dumps({**begin, "turn": "right", "arm": {"joint": 3, "angle": 0.5}, "scale": 2.5}))
            page.get_by_role("button", name="Step").click()
            page.get_by_text("Step 2: reward 2.5.").wait_for()
            assert page.locator("#r-return").text_content() == "3.5"
            lines = page.locator("#observation").text_content().splitlines()
            assert {"count: 2", 'turn: "right"', 'arm: {"joint": 3, "angle": 0.5}'} <= set(lines)
            action.fill('{"gear": 7, "hold": "maybe"}')
            page.get_by_role("button", name="Step").click()
            page.locator("#said.problem", has_text="Invalid message: gear: Input should be").wait_for()
            page.locator("#said.problem", has_text="; hold: Input should be").wait_for()
            action.fill('{"order": "end"}')
            page.get_by_role("button", name="Step").click()
            page.get_by_text("Step 3: reward").wait_for()  # the one that was refused isn't counted
            page.get_by_text("The episode is over, with a return of 3.5.").wait_for()
            page.get_by_text("Schema of an action").click()
            page.get_by_text('"maximum": 6').wait_for()
