"""Short calls: a program that ends soon as one built-in function of Python, from arrays to arrays; around its kernels
there is about a microsecond instead of six.

    call = short_call(executor(), contexts, params, result_class, guards)
    call(x, y)         # [results], or None: then nothing has been done, and the program must be run as all are

Of a program that takes some microseconds, most of the time is Python's: looking at arguments, making results,
getting into native code. `executor_call` does all of that in native code. A call is for arrays of one set of types and
shapes, lies on one context that it has for itself, and holds the GIL, so that no two threads are ever inside of it;
that is why only programs are called so that have been seen to end within `LONGEST_NS`.

NumPy and CPython are used as their extension modules use them, by the addresses of their functions and the layout of
their objects. Both are looked at once; where they are not as expected there are no short calls.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.api import Guards, ShortCall
from rlx.backends.cpu.context import Contexts
from rlx.backends.cpu.executor import Executor
from rlx.backends.cpu.executor_call import PyObjects
from rlx.backends.cpu.executor_layout import Job
from rlx.backends.cpu.pool import pool
from rlx.backends.cpu.threads import CHANGES_AT, NOT_IN_SCOPES, changes, thread_count
from rlx.backends.kernel_times import times
from rlx.backends.memory import ALIGNMENT, SMALL_RESULT
from rlx.backends.program.arena import Arenas
from rlx.backends.program.command_table import Table
from rlx.backends.program.params import CpuParams
from rlx.backends.program.plan import Plan
from rlx.backends.program.program import ARENA, NativeStep, Program
from rlx.backends.program.table_layout import WORD

# Threads of Python that wait for the GIL ask for it every 5 ms.
LONGEST_NS = 100_000
# Of larger results every page is new, which takes longer than all else; and a call keeps what it has between kernels.
LARGEST_RESULT, LARGEST_ARENA = 1 << 22, 1 << 20
# Kernels whose time does not follow from the sizes of their operands: loops in registers.
_ENDLESS_KINDS = ("rounds",)

_BYTE = np.dtype(np.uint8)

_METH_FASTCALL = 0x80
_NEW_FROM_DESCR = 94  # the number of PyArray_NewFromDescr among NumPy's functions
_KNOWN_NUMPY = (0x01000009, 0x02000000)  # versions of its binary interface


class _Interface(NamedTuple):
    """What a record has in its head, in this order."""

    none: int
    ndarray: int
    result_class: int
    incref: int
    decref: int
    new_list: int
    new_array: int
    get_variable: int


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Words(np.ndarray[Any, np.dtype[np.int64]]):
    """The words of a record, and what must live as long as it does."""

    held: tuple[object, ...]


def has_short_calls(program: Program) -> bool:
    """Whether a program is of the kind that can be called so, for small sizes: kernels only, nothing overwritten."""
    steps = program.steps[: len(program.steps) - len(program.checks)]
    stored = [number - len(program.inputs) for number in program.returned]
    return (
        program.is_native_but_for_checks
        and not program.overwritten
        and sorted(stored) == list(range(len(program.stored)))
        and all(isinstance(s, NativeStep) and s.label[0] not in _ENDLESS_KINDS for s in steps)
        and _interface() is not None
    )


def short_call(
    executor: Executor,
    contexts: Contexts,
    params: CpuParams,
    result_class: type,
    guards: Guards,
    option: int | None,
) -> ShortCall | None:
    """The call for the shapes of some contexts; None if there is none because they are too large. It reads the params
    where they are and does not keep them: who calls it has them, and they have it. `option` is the number of threads
    that the program was compiled for."""
    plan, interface = contexts.plan, _interface()
    if interface is None or contexts.fastest_ns > LONGEST_NS or not _is_small(plan):
        return None
    program, context = plan.program, contexts.take()
    arena = Arenas().take(plan.arena_bytes)
    context.set(arena, ())
    context.set_params(params)
    stored = [number - len(program.inputs) for number in program.returned]
    places = [context.place_of(ARENA + 1 + number) for number in (*range(len(program.inputs)), *program.returned)]
    inputs = [(leaf.dtype, dims, leaf.align - 1) for leaf, dims in zip(program.inputs, contexts.inputs)]
    outputs = [_output(dims, dtype, size) for dims, dtype, size in (plan.stored_sizes[number] for number in stored)]
    shapes = [np.array(dims, np.int64) for _, dims, _ in (*inputs, *outputs)]
    operands = [
        [id(dtype), len(dims), shape.ctypes.data, place, unaligned]
        for (dtype, dims, unaligned), shape, place in zip((*inputs, *outputs), shapes, places)
    ]
    blocks = [_block(dims, dtype, rest) for dtype, dims, rest in outputs]
    block_shapes = [np.array(dims, np.int64) for _, dims in blocks]
    for row, (dtype, dims), shape in zip(operands[len(inputs) :], blocks, block_shapes):
        row += [id(dtype), len(dims), shape.ctypes.data]
    for row in operands[: len(inputs)]:
        row += [0, 0, 0]
    # Before anybody is asked how many threads there are: what changes meanwhile is seen.
    known = changes()
    workers, width = pool(executor), context.tables[0].width
    threads = workers.ready(min(width, thread_count(option))) if width > 1 else 1
    depends = NOT_IN_SCOPES if width > 1 else ()
    parts = [
        np.array(rows, np.int64)
        for rows in (
            [(id(variable), id(value)) for variable, value in (*guards, *depends, (times, None))],
            operands[: len(inputs)],
            operands[len(inputs) :],
            [(arena.address + start, arena.address + stop) for start, stop in plan.flags],
        )
    ]
    job = context.tables[0]
    segment = context.words[job.next_at - Job.NEXT + Job.START]
    named = [word for part in parts for word in (part.ctypes.data, len(part))]
    run = [job.address, segment, threads, workers.address, CHANGES_AT, known]
    head = [*interface._replace(result_class=id(result_class)), *run, *named]
    record = np.array(head, np.int64).view(_Words)
    method = _MethodDef(b"short_call", executor.call, _METH_FASTCALL, None)
    record.held = (
        executor,
        plan,
        context,
        arena,
        guards,
        result_class,
        method,
        shapes,
        blocks,
        block_shapes,
        parts,
        workers,
    )
    made: ShortCall = _new_function()(ctypes.addressof(method), record, None)
    return made


def _is_small(plan: Plan) -> bool:
    if len(plan.parts) - len(plan.program.checks) != 1 or not isinstance(plan.parts[0], Table):
        return False
    segments = plan.parts[0].segments
    largest = max([size for _, _, size in plan.stored_sizes], default=0)
    return len(segments) == 1 and largest <= LARGEST_RESULT and plan.arena_bytes <= LARGEST_ARENA


def _output(dims: tuple[int, ...], dtype: np.dtype[Any], size: int) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """A result, and which bits of its address are 0: small ones lie wherever NumPy places them."""
    return dtype, dims, ALIGNMENT - 1 if size > SMALL_RESULT else 0


def _block(dims: tuple[int, ...], dtype: np.dtype[Any], rest: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """What is made for a result: it, or bytes that have room to begin at a cache line."""
    return (_BYTE, (math.prod(dims) * dtype.itemsize + rest,)) if rest else (dtype, dims)


@cache
def _interface() -> _Interface | None:
    """Addresses in this process; None where objects are not as `PyObjects` says, or threads run without a GIL."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    if ctypes.sizeof(ctypes.c_void_p) != WORD or object.__basicsize__ != 2 * WORD or not _is_as_expected():
        return None
    python, core = ctypes.pythonapi, getattr(np, "_core", None) or np.core
    get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", python)
    )
    table = (ctypes.c_void_p * (_NEW_FROM_DESCR + 1)).from_address(get_pointer(core._multiarray_umath._ARRAY_API, None))
    _new_function()
    version = ctypes.PYFUNCTYPE(ctypes.c_uint)(table[0] or 0)
    if version() not in _KNOWN_NUMPY:
        return None

    def address(name: str) -> int:
        return ctypes.cast(getattr(python, name), ctypes.c_void_p).value or 0

    return _Interface(
        none=id(None),
        ndarray=id(np.ndarray),
        result_class=0,
        incref=address("Py_IncRef"),
        decref=address("Py_DecRef"),
        new_list=address("PyList_New"),
        new_array=table[_NEW_FROM_DESCR] or 0,
        get_variable=address("PyContextVar_Get"),
    )


def _is_as_expected() -> bool:
    """Whether an array and a list have their parts where NumPy's and CPython's headers say."""
    array = np.zeros((3, 5), np.int16)[1:]
    words = (ctypes.c_int64 * (PyObjects.FLAGS + 1)).from_address(id(array))
    dims = (ctypes.c_int64 * 2).from_address(words[PyObjects.DIMS])
    half = 0xFFFFFFFF
    listed = [array]
    items = (ctypes.c_int64 * (PyObjects.LIST_ITEMS + 1)).from_address(id(listed))[PyObjects.LIST_ITEMS]
    return (
        words[PyObjects.TYPE] == id(np.ndarray)
        and words[PyObjects.DATA] == array.ctypes.data
        and words[PyObjects.RANK] & half == 2
        and list(dims) == [2, 5]
        and words[PyObjects.BASE] == id(array.base)
        and words[PyObjects.DTYPE] == id(array.dtype)
        and words[PyObjects.FLAGS] & half == array.flags.num
        and ctypes.c_int64.from_address(items).value == id(array)
    )


@cache
def _new_function() -> Callable[[int, object, object], Any]:
    """PyCFunction_NewEx(method, self, module)."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    return kind(("PyCFunction_NewEx", ctypes.pythonapi))
