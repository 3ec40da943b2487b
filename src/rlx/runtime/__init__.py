"""Executables to results: devices, sessions, compiled graphs, arrays. Importing it makes ops return `rlx.Array`."""

from rlx import backends as backends
from rlx.runtime import jit_runtime as jit_runtime
from rlx.runtime.arrays import Array as Array
from rlx.runtime.compiled_graph import CompiledGraph as CompiledGraph
from rlx.runtime.session import Session as Session
