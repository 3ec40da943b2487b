"""`rlx.driver`: memory and order of execution below sessions: buffers, arenas, command streams, symmetric memory.

Sessions need none of it; it is for code that places values itself, or that exchanges them between ranks.
"""

from rlx.driver.buffers import Buffer as Buffer
from rlx.driver.buffers import BufferHandle as BufferHandle
from rlx.driver.buffers import DeviceArena as DeviceArena
from rlx.driver.collectives import ReduceKind as ReduceKind
from rlx.driver.collectives import all_gather as all_gather
from rlx.driver.collectives import all_reduce as all_reduce
from rlx.driver.collectives import reduce_scatter as reduce_scatter
from rlx.driver.streams import CommandStream as CommandStream
from rlx.driver.streams import SyncStream as SyncStream
from rlx.driver.symmetric import CollectiveError as CollectiveError
from rlx.driver.symmetric import LengthMismatch as LengthMismatch
from rlx.driver.symmetric import LocalTransport as LocalTransport
from rlx.driver.symmetric import OutOfBounds as OutOfBounds
from rlx.driver.symmetric import Rank as Rank
from rlx.driver.symmetric import SymmetricBuffer as SymmetricBuffer
from rlx.driver.symmetric import SymmetricHeap as SymmetricHeap
from rlx.driver.symmetric import SymmetricTransport as SymmetricTransport
from rlx.driver.symmetric import TransportError as TransportError
from rlx.driver.symmetric import UnknownRank as UnknownRank
from rlx.runtime.device import Device as Device
