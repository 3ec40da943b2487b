"""libcuda by ctypes: the driver's functions, each call checked. No toolkit, no runtime library, no compiler.

`driver()` loads and starts it once, and raises `BackendError` with the reason and the way out where that fails;
`probe()` answers the same question without an exception. Tests put their own library in its place by `using`.

Streams, memory, modules and all that stands on them call functions by the names that CUDA has for them. A driver of
another vendor with the same ideas is a class derived from `Driver` that finds its own functions for these names.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_int
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

from rlx.backends.cuda.driver_types import FUNCTIONS
from rlx.backends.cuda.errors import SUCCESS, CudaError
from rlx.errors import BackendError

# The oldest driver whose assembler reads PTX 8.0, the first version that knows sm_90a.
OLDEST = 12000

_LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")


_started: WeakSet[Driver] = WeakSet()


def _mark_forked() -> None:
    for started in _started:
        started.is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


class Driver:
    """The functions of a library by their names: `driver.cuCtxSynchronize()` returns nothing or raises `CudaError`.

    `library` is what ctypes loads, or an object that has the same functions.
    """

    device: ClassVar[str] = "cuda"
    # How DLPack numbers devices of this kind: their own memory first, then memory that moves to and from the host.
    dlpack_kinds: ClassVar[tuple[int, ...]] = (2, 13)
    no_gpu: ClassVar[str] = "cuda: the driver finds no GPU; look at nvidia-smi and at CUDA_VISIBLE_DEVICES"

    def __init__(self, library: Any) -> None:
        self._library = library
        self._raw: dict[str, Any] = {}
        # Set in a forked child; asking for the number of the process would be a system call at every use.
        self.is_forked = False
        _started.add(self)
        self.cuInit(0)
        version = c_int()
        self.cuDriverGetVersion(ctypes.byref(version))
        self.version = version.value
        self.check_version()

    def check_version(self) -> None:
        """Refuse a driver that is too old."""
        if self.version < OLDEST:
            raise BackendError(
                f"cuda: the NVIDIA driver supports CUDA {version_text(self.version)}, {version_text(OLDEST)} or later "
                "is needed; install a newer driver"
            )

    @property
    def version_name(self) -> str:
        """What the driver is, for people."""
        return f"CUDA {version_text(self.version)}"

    def error(self, code: int, what: str, detail: str = "") -> CudaError:
        """The exception for a code that the function `what`, or something with a name of its own, gave."""
        return CudaError(code, what, detail)

    def bound(self, name: str) -> Any:
        """The function of the library that does what CUDA calls so; None if it has none."""
        return self.typed(name, FUNCTIONS[name])

    def typed(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """A function of the library that takes such arguments and returns a code."""
        function = getattr(self._library, name, None)
        if function is not None and isinstance(self._library, ctypes.CDLL):
            function.argtypes, function.restype = arguments, c_int
        return function

    def __getattr__(self, name: str) -> Any:
        """A function of the driver, bound on its first use."""
        if name not in FUNCTIONS:
            raise AttributeError(f"the driver's function {name!r} is not declared in driver_types")
        function = self.bound(name)
        if function is None:
            raise BackendError(f"{self.device}: this driver ({self.version_name}) lacks {name}; install a newer one")

        def checked(*arguments: Any) -> None:
            code = function(*arguments)
            if code != SUCCESS:
                raise self.error(code, name)

        self._raw[name] = function
        self.__dict__[name] = checked
        return checked

    def raw(self, name: str) -> Any:
        """A function that returns its code, for callers to whom some codes are answers."""
        getattr(self, name)
        return self._raw[name]

    @property
    def is_usable(self) -> bool:
        """Whether calls may be made: neither in a child of the process that started the driver, nor at its end."""
        return not self.is_forked and not sys.is_finalizing()

    def check_process(self) -> None:
        if self.is_forked:
            raise BackendError(
                f"{self.device}: this process was forked from one that uses the GPU, and the driver does not survive a "
                "fork; start processes with multiprocessing's 'spawn' or 'forkserver', or fork before the first use"
            )


class Present(NamedTuple):
    """A driver that works: its version and how many GPUs it has."""

    version: int
    devices: int


class Missing(NamedTuple):
    """Why there is no GPU to use, and what to do."""

    reason: str


class ProcessDriver:
    """The driver of this process, loaded and started on the first use."""

    def __init__(self, make: type[Driver], load: Callable[[], Any]) -> None:
        self._make, self._load, self._lock = make, load, threading.Lock()
        self.started: Driver | None = None

    def get(self) -> Driver:
        known = self.started
        if known is None:
            with self._lock:
                if self.started is None:
                    self.started = self._make(self._load())
                known = self.started
        known.check_process()
        return known

    def probe(self) -> Present | Missing:
        try:
            started = self.get()
            count = c_int()
            started.cuDeviceGetCount(ctypes.byref(count))
        except BackendError as error:
            return Missing(str(error))
        return Present(started.version, count.value) if count.value else Missing(self._make.no_gpu)

    @contextmanager
    def using(self, library: Any) -> Iterator[Driver]:
        before = self.started
        self.started = self._make(library)
        try:
            yield self.started
        finally:
            self.started = before


def driver() -> Driver:
    """The driver of this process, loaded and started on the first call."""
    return PROCESS.get()


def probe() -> Present | Missing:
    """Whether programs can run on a GPU here; costs some milliseconds once."""
    return PROCESS.probe()


@contextmanager
def using(library: Any) -> Iterator[Driver]:
    """Inside the block the driver is `library`: an object with the functions of libcuda."""
    with PROCESS.using(library) as started:
        yield started


def version_text(version: int) -> str:
    """
    >>> version_text(12040)
    '12.4'
    """
    return f"{version // 1000}.{version % 1000 // 10}"


def _load() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BackendError(
        f"cuda: there is no NVIDIA driver on this machine ({_LIBRARIES[0]} is not found); install it, or use the "
        "device 'cpu'. PTX can be made without: rlx.backends.cuda.compile_to_ptx"
    )


PROCESS = ProcessDriver(Driver, _load)
