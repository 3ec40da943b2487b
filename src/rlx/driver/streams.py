"""Streams of work: what is submitted runs in the order of submission, while the caller goes on, or at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from rlx.errors import BackendError

Work = Callable[[], object]


class CommandStream:
    """Work in order, on a thread of its own. The first error stops the stream: what was submitted behind it is not run,
    and `wait` raises it.

        with CommandStream() as stream:
            stream.submit(first)
            stream.submit(second)
            stream.wait()
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._pending = 0
        self._error: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="rlx-stream", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Queue a piece of work."""
        with self._state:
            if self._is_closed:
                raise BackendError("CommandStream: it is closed; make another one")
            self._pending += 1
            self._queue.put(work)

    def wait(self) -> None:
        """Until all that was submitted has run; an error of it is raised here, once."""
        with self._state:
            self._state.wait_for(lambda: self._pending == 0)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def submit_and_wait(self, work: Work) -> None:
        self.submit(work)
        self.wait()

    def close(self) -> None:
        """Finish what was submitted, and end the thread."""
        with self._state:
            if self._is_closed:
                return
            self._is_closed = True
            self._queue.put(None)
        self._thread.join()

    def __enter__(self) -> CommandStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            if self._error is None:
                try:
                    work()
                except BaseException as error:
                    self._error = error
            with self._state:
                self._pending -= 1
                self._state.notify_all()


class SyncStream:
    """The same interface for devices that have finished when they return: work runs where it is submitted."""

    def submit(self, work: Work) -> None:
        work()

    def wait(self) -> None:
        """Nothing is ever under way."""

    def submit_and_wait(self, work: Work) -> None:
        work()
