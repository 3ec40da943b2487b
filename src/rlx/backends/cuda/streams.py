"""Streams, in which work is done in order, events between them, and graphs, which are recorded streams."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_float, c_void_p
from typing import TYPE_CHECKING

from rlx.backends.cuda.driver_types import (
    CAPTURE_THREAD_LOCAL,
    EVENT_DEFAULT,
    EVENT_DISABLE_TIMING,
    STREAM_NON_BLOCKING,
    GraphExecUpdateResultInfo,
)
from rlx.backends.cuda.errors import NOT_READY, SUCCESS
from rlx.errors import BackendError

if TYPE_CHECKING:
    from rlx.backends.cuda.device import Gpu
    from rlx.backends.cuda.driver import Driver


class Event:
    """A point in a stream; two of them with `timed` measure what lies between."""

    def __init__(self, gpu: Gpu, timed: bool = False) -> None:
        self._driver = gpu.driver
        self.handle = c_void_p()
        gpu.use()
        flags = EVENT_DEFAULT if timed else EVENT_DISABLE_TIMING
        gpu.driver.cuEventCreate(ctypes.byref(self.handle), flags)

    def synchronize(self) -> None:
        self._driver.cuEventSynchronize(self.handle)

    @property
    def is_done(self) -> bool:
        return _is_done(self._driver, "cuEventQuery", self.handle)

    def seconds_since(self, start: Event) -> float:
        """The time between two events that have happened."""
        milliseconds = c_float()
        self._driver.cuEventElapsedTime(ctypes.byref(milliseconds), start.handle, self.handle)
        return milliseconds.value / 1e3

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self._driver.is_usable:
            self._driver.raw("cuEventDestroy_v2")(self.handle)


class Stream:
    """Work in order. It does not wait for the stream 0 of other libraries, nor do they wait for it."""

    def __init__(self, gpu: Gpu, priority: int = 0) -> None:
        self.gpu, self._driver = gpu, gpu.driver
        self.is_capturing = False
        self.handle = c_void_p()
        gpu.use()
        gpu.driver.cuStreamCreateWithPriority(ctypes.byref(self.handle), STREAM_NON_BLOCKING, priority)

    def synchronize(self) -> None:
        self._driver.cuStreamSynchronize(self.handle)

    @property
    def is_done(self) -> bool:
        return _is_done(self._driver, "cuStreamQuery", self.handle)

    def record(self, event: Event | None = None) -> Event:
        event = event or Event(self.gpu)
        self._driver.cuEventRecord(event.handle, self.handle)
        return event

    def wait(self, event: Event) -> None:
        """What comes later in this stream begins when the event has happened; the host does not wait."""
        self._driver.cuStreamWaitEvent(self.handle, event.handle, 0)

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Inside the block work is recorded and not done; the graph is there after it."""
        graph = Graph(self.gpu)
        self._driver.cuStreamBeginCapture_v2(self.handle, CAPTURE_THREAD_LOCAL)
        self.is_capturing = True
        try:
            yield graph
        except BaseException:
            # The stream must not stay in recording, whatever broke it.
            self._driver.raw("cuStreamEndCapture")(self.handle, ctypes.byref(c_void_p()))
            raise
        finally:
            self.is_capturing = False
        self._driver.cuStreamEndCapture(self.handle, ctypes.byref(graph.handle))

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self._driver.is_usable:
            self._driver.raw("cuStreamDestroy_v2")(self.handle)


class Graph:
    """Recorded work; `instantiate` makes it launchable."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self._driver = gpu, gpu.driver
        self.handle = c_void_p()

    @property
    def node_count(self) -> int:
        count = ctypes.c_size_t()
        self._driver.cuGraphGetNodes(self.handle, None, ctypes.byref(count))
        return count.value

    def instantiate(self) -> GraphExec:
        return GraphExec(self)

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self._driver.is_usable:
            self._driver.raw("cuGraphDestroy")(self.handle)


class GraphExec:
    """A graph that is launched as one piece of work, as often as wanted."""

    def __init__(self, graph: Graph) -> None:
        if not graph.handle:
            raise BackendError(f"{graph.gpu.driver.device}: a graph is instantiated after its recording has ended")
        self._driver = graph.gpu.driver
        self.handle = c_void_p()
        self._driver.cuGraphInstantiateWithFlags(ctypes.byref(self.handle), graph.handle, 0)

    def launch(self, stream: Stream) -> None:
        self._driver.cuGraphLaunch(self.handle, stream.handle)

    def update(self, graph: Graph) -> bool:
        """Take over the arguments of a graph of the same form; False, and nothing is changed, if the form differs."""
        info = GraphExecUpdateResultInfo()
        code = self._driver.raw("cuGraphExecUpdate_v2")(self.handle, graph.handle, ctypes.byref(info))
        if code not in (SUCCESS, 910):
            raise self._driver.error(code, "cuGraphExecUpdate_v2")
        return bool(code == SUCCESS)

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self._driver.is_usable:
            self._driver.raw("cuGraphExecDestroy")(self.handle)


def _is_done(driver: Driver, query: str, handle: c_void_p) -> bool:
    code = int(driver.raw(query)(handle))
    if code not in (SUCCESS, NOT_READY):
        raise driver.error(code, query)
    return code == SUCCESS
