"""A text environment in many sessions at a time, as for rollouts of a language model.

Actions are strings and observations are a tuple of strings, one for each session. Where a model would generate an
answer for each prompt, `answer` here reads the prompts and halves the range: it needs no more than seven guesses.

    python examples/openenv_text.py
"""

import random
import re

from openenv.core.env_server import Action, Environment, Observation, State

from openenv_gym import LocalServer, RemoteVecEnv

SESSIONS = 8


class Say(Action):
    """What the player says."""

    text: str


class Heard(Observation):
    """What the game answers."""

    text: str


class Guess(Environment[Say, Heard, State]):
    """Guess a number from 1 to 100."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        """Think of a number."""
        self.secret, self.low, self.high = random.Random(seed).randint(1, 100), 1, 100
        return self._heard("Guess my number")

    def step(self, action, timeout_s=None, **kwargs):
        """Take a guess; what is no number costs a step too."""
        found = re.search(r"\d+", action.text)
        guess = int(found[0]) if found else 0
        if guess == self.secret:
            return Heard(text="Yes!", reward=1.0, done=True)
        if self.low <= guess < self.secret:
            self.low = guess + 1
        elif self.secret < guess <= self.high:
            self.high = guess - 1
        return self._heard("Too low" if guess < self.secret else "Too high")

    def _heard(self, text):
        return Heard(text=f"{text}: it is from {self.low} to {self.high}.", reward=-0.1)

    @property
    def state(self):
        """Nothing that a player may see."""
        return State()


def answer(prompts):
    """One answer for each prompt: the place of ``model.generate``."""
    ranges = [[int(number) for number in re.findall(r"\d+", prompt)] for prompt in prompts]
    return [f"I say {sum(low_high) // 2}." if low_high else "Again!" for low_high in ranges]


def main():
    """Play one game in each session."""
    with LocalServer(Guess, max_envs=SESSIONS) as server:
        with RemoteVecEnv(server.url, SESSIONS, token=server.token, autoreset_mode="Disabled") as env:
            heard, _ = env.reset(seed=1)
            won = [False] * SESSIONS
            for turn in range(1, 8):
                said = answer(heard)
                print(f"turn {turn}: {heard[0]!r} -> {said[0]!r}")
                heard, _, ended, _, _ = env.step(said)
                won = [old or bool(new) for old, new in zip(won, ended, strict=True)]
                if all(won):
                    break
                if ended.any():  # those that have ended play on, and the others are not disturbed
                    heard, _ = env.reset(options={"reset_mask": ended})
    print(f"won {sum(won)} of {SESSIONS} games in {turn} turns")


if __name__ == "__main__":
    main()
