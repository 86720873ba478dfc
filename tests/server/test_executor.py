"""Workers: one thread each, jobs in order; batches that end when their last worker does."""

import threading

import pytest
from helpers_wait import LIMIT_S

from openenv_gym.server import executor as module
from openenv_gym.server.executor import Executor, Worker, run_together


@pytest.fixture
def worker():
    worker = Worker("test")
    yield worker
    worker.stop()
    assert worker.join(LIMIT_S)


def do(worker, job=lambda: None):
    """Run a job, and wait for it."""
    done = threading.Event()
    worker.submit(job)
    worker.submit(done.set)
    assert done.wait(LIMIT_S)


class TestWorkers:
    def test_jobs_run_in_order_on_one_thread(self, worker):
        seen = []
        for number in range(100):
            worker.submit(lambda number=number: seen.append((number, threading.get_ident())))
        do(worker)
        assert [number for number, _ in seen] == list(range(100))
        (thread,) = {thread for _, thread in seen}
        assert thread != threading.get_ident()

    @pytest.mark.parametrize("error", [ValueError("oops"), SystemExit(3), KeyboardInterrupt()])
    def test_what_a_job_raises_is_logged_and_ends_nothing(self, worker, error, caplog):
        def fail():
            raise error

        do(worker, fail)
        do(worker)
        assert "a job failed on test" in caplog.text
        assert type(error).__name__ in caplog.text

    def test_stop_lets_earlier_jobs_run(self):
        worker, seen = Worker("test"), []
        for number in range(10):
            worker.submit(lambda number=number: seen.append(number))
        worker.stop()
        assert worker.join(LIMIT_S)
        assert seen == list(range(10))

    def test_join_says_whether_it_ended(self, worker):
        assert worker.join(0) is False

    def test_a_job_is_not_kept(self, worker):
        """An env in its closure could otherwise not be freed before the next job."""
        gone = threading.Event()

        class Watched:
            def __del__(self):
                gone.set()

        worker.submit(lambda watched=Watched(): None)
        assert gone.wait(LIMIT_S)


class TestPlaces:
    def test_a_group_shares_a_worker(self):
        executor = Executor(max_workers=None, apart=False)
        first, second = executor.place(4), executor.place(2)
        assert (len(first), len(set(first)), len(second)) == (4, 1, 2)
        assert set(first) != set(second)
        assert executor.workers == 2
        executor.stop()

    def test_apart(self):
        executor = Executor(max_workers=None, apart=True)
        assert len(set(executor.place(4))) == executor.workers == 4
        executor.stop()

    def test_at_most_so_many_workers(self):
        executor = Executor(max_workers=2, apart=False)
        placed = [*executor.place(3), *executor.place(5)]
        assert executor.workers == 2
        assert sorted(placed.count(worker) for worker in set(placed)) == [4, 4]
        executor.stop()

    def test_a_worker_without_envs_ends(self):
        executor = Executor(max_workers=None, apart=False)
        worker, again = executor.place(2)
        executor.leave(worker)
        assert executor.workers == 1
        executor.leave(again)
        assert executor.workers == 0
        assert worker.join(LIMIT_S)

    def test_a_worker_that_is_given_up_ends_when_it_can(self):
        executor = Executor(max_workers=1, apart=False)
        (worker,) = executor.place(1)
        stuck = threading.Event()
        worker.submit(lambda: stuck.wait(LIMIT_S))
        executor.abandon(worker)
        assert executor.workers == 0
        assert executor.place(1) != [worker]
        assert not worker.join(0)
        stuck.set()
        assert worker.join(LIMIT_S)
        executor.leave(worker)  # a session that doesn't know it yet
        assert executor.workers == 1
        executor.stop()

    def test_stop_ends_all(self):
        executor = Executor(max_workers=None, apart=True)
        placed = executor.place(3)
        executor.stop()
        executor.stop()
        assert all(worker.join(LIMIT_S) for worker in placed)

    def test_a_system_without_threads_to_spare(self, monkeypatch):
        """All or none: the workers that could be had are given back."""
        executor = Executor(max_workers=None, apart=True)
        made = []

        def make(name):
            if len(made) == 2:
                raise RuntimeError("can't start new thread")
            made.append(Worker(name))
            return made[-1]

        monkeypatch.setattr(module, "Worker", make)
        with pytest.raises(RuntimeError, match="can't start"):
            executor.place(3)
        assert executor.workers == 0
        assert all(worker.join(LIMIT_S) for worker in made)


class TestBatches:
    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_finish_runs_once_after_all(self, count):
        workers = [Worker(f"test-{n}") for n in range(count)]
        for _ in range(50):
            ended, at_finish, done = [], [], threading.Event()

            def finish():
                at_finish.append(len(ended))
                done.set()

            run_together([(worker, lambda: ended.append(1)) for worker in workers], finish)
            assert done.wait(LIMIT_S)
            assert at_finish == [count]
        for worker in workers:
            worker.stop()

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_job_that_raises_counts_as_ended(self, count, caplog):
        workers = [Worker(f"test-{n}") for n in range(count)]
        done = threading.Event()

        def fail():
            raise SystemExit

        run_together([(worker, fail) for worker in workers], done.set)
        assert done.wait(LIMIT_S)
        for worker in workers:
            worker.stop()
            assert worker.join(LIMIT_S)
        assert caplog.text.count("a job failed") == count

    def test_jobs_run_at_the_same_time(self):
        workers = [Worker(f"test-{n}") for n in range(8)]
        together, done = threading.Barrier(8), threading.Event()
        run_together([(worker, lambda: together.wait(LIMIT_S)) for worker in workers], done.set)
        assert done.wait(LIMIT_S)
        assert not together.broken
        for worker in workers:
            worker.stop()
