"""`TensorForm`: another way to compute what a loop kernel does, launched with the arguments of that kernel.

The loop kernel stays what it means, and what runs where a form cannot: operands that the copy engine cannot read, too
few rows. Forms of one kernel are asked in order; the first that launches has done the work.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock
from rlx.backends.cuda.modules import Function, Launch, launch
from rlx.backends.cuda.streams import Stream
from rlx.backends.native.kept_stamps import kept_stamp
from rlx.ir.dtype import DType
from rlx.kernels.ir.extents import Extent
from rlx.kernels.machines import Machine

# Launches whose arguments are kept.
KEPT = 64

# What decides the code besides what a form says itself.
SOURCES = ("backends/cuda/hopper", "kernels/gpu", "kernels/ir", "kernels/math", "kernels/emit", "kernels/legalize.py")

# Types that the tensor cores multiply and the copy engine brings, in the words of PTX.
ELEMENTS = {DType.BF16: "bf16", DType.F16: "f16"}
# The same of one byte, which only wgmma multiplies.
BYTES = {DType.F8E4M3: "e4m3", DType.F8E5M2: "e5m2"}
BYTE_ELEMENTS = tuple(BYTES.values())


# Bytes that a block may have on chips whose multiprocessors share less than those of the large ones, and on those.
_SMALL_CHIPS = {75: 64 << 10, 86: 99 << 10, 89: 99 << 10, 120: 99 << 10, 121: 99 << 10, 80: 163 << 10, 87: 163 << 10}
_LARGE_CHIPS = 227 << 10


def block_shared_bytes(machine: Machine) -> int:
    """What a block may have of the memory that its threads share, if it asks for it."""
    return _SMALL_CHIPS.get(machine.generation, _LARGE_CHIPS)


class Loadable(Protocol):
    """Code that can be brought to a GPU."""

    def function(self, gpu: Gpu) -> Function: ...


# What finds or makes code: the name of its entry, the text of all that decides it, and what makes the PTX.
Load = Callable[[str, str, Callable[[], str]], Loadable]


class Ready(NamedTuple):
    """A launch with its arguments, and those in front of it; without a function the loop kernel runs."""

    function: Function | None
    shape: Launch
    block: ArgumentBlock
    before: tuple[Ready, ...] = ()


NOTHING = Ready(None, Launch(0, 0), ArgumentBlock(0, 1))


class Surroundings(NamedTuple):
    """What a launch finds: whether it need not wait for the end of the kernel in front, as its code does; which
    arguments, by number, point to what no kernel writes; and where its `scratch_bytes` are, 0 if nowhere."""

    begins_early: bool = False
    fixed: frozenset[int] = frozenset()
    scratch: int = 0


ALONE = Surroundings()


class TensorForm(ABC):
    """One way. `name` is how reports call it; `params` are the names of the parameters of the loop kernel. Only code
    that says that it `waits` for kernels in front (`Writer.wait_for_others`) may begin before they end."""

    name: str
    entry: str
    waits = False

    def __init__(self, params: Sequence[str], machine: Machine, load: Load) -> None:
        self.machine, self._load = machine, load
        self.places = {name: i for i, name in enumerate(params)}
        self._functions: dict[tuple[object, int], Function] = {}
        self._ready: dict[tuple[int, int, tuple[int, ...]], Ready] = {}
        self._lock = threading.Lock()

    @property
    def argument_count(self) -> int:
        """Of the loop kernel."""
        return len(self.places)

    @abstractmethod
    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        """What is launched for these arguments, or `NOTHING`."""

    def prepared_with(self, words: Sequence[int], gpu: Gpu, around: Surroundings) -> Ready:
        """The same where it matters what is fixed, or that there is scratch memory."""
        return self.prepared(words, gpu)

    def scratch_bytes(self, words: Sequence[int], gpu: Gpu) -> int:
        """What a launch with such sizes needs of memory that is its own until it ends; addresses do not matter."""
        return 0

    def launch(self, words: Sequence[int], stream: Stream, around: Surroundings = ALONE) -> bool:
        """Launch with the arguments of the loop kernel; False, and nothing is done, where it must run instead."""
        key = (id(stream.gpu), around.scratch, tuple(words))
        known = self._ready.get(key)
        if known is None:
            if len(self._ready) >= KEPT:
                self._ready.clear()
            known = self._ready[key] = self.prepared_with(words, stream.gpu, around)
        if known.function is None:
            return False
        for one in (*known.before, known):
            assert one.function is not None
            shape = one.shape._replace(dependent=True) if around.begins_early and self.waits else one.shape
            launch(one.function, shape, one.block.address, stream)
        return True

    def number(self, extent: Extent, words: Sequence[int]) -> int:
        return extent if isinstance(extent, int) else words[self.places[extent]]

    def function(
        self, variant: object, shared_bytes: int, what: str, make: Callable[[], str], gpu: Gpu, entry: str = ""
    ) -> Function:
        """The code of a variant of this form; `what` is the text of all that decides it besides the sources."""
        key = (variant, id(gpu))
        with self._lock:
            if key not in self._functions:
                whole = f"{what}\0{self.machine!r}\0{kept_stamp(*SOURCES)}"
                function = self._load(entry or self.entry, whole, make).function(gpu)
                function.allow_shared(shared_bytes)
                self._functions[key] = function
            return self._functions[key]
