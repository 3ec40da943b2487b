"""Short calls: a run of a program for arrays such as the last ones, with nothing looked at that cannot have changed.

    call = short_call(gpu, contexts, params, result_class, guards)
    call(x, y)         # [results], or None: then nothing has been done, and the program must be run as all are

What remains of a run is to compare types, shapes and streams of arguments with those that it is for, to take memory for
the results, and to launch. The GPU works meanwhile, so this is what a small program costs.
"""

from __future__ import annotations

import weakref
from typing import Any

from rlx.backends.api import Guards, ShortCall
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.context import Contexts
from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.errors import SUCCESS
from rlx.backends.kernel_times import times
from rlx.backends.program.command_table import Table
from rlx.backends.program.device_programs import DeviceParams
from rlx.backends.program.program import ARENA, Program


def has_short_calls(program: Program) -> bool:
    """Whether a program is of the kind that can be called so: it needs nothing of the host and stores over no input."""
    return program.is_native and not program.overwritten and not program.moved


def short_call(
    gpu: Gpu, contexts: Contexts, params: DeviceParams[Any], result_class: type[Any], guards: Guards
) -> ShortCall:
    """The call for the shapes of some contexts. Arguments and results are of `result_class`, whose `value` is what the
    device has; it keeps neither them nor the params."""
    stream, pool, program = gpu.stream, gpu.pool, contexts.plan.program
    wanted = [(leaf.dtype, dims) for leaf, dims in zip(program.inputs, contexts.inputs, strict=True)]
    stored, returned, count = contexts.stored, program.returned, len(program.inputs)
    tables = [part for part in contexts.plan.parts if isinstance(part, Table)]
    checked = (*guards, (times, None))
    held, driver = weakref.ref(params), gpu.driver
    make_current, own = driver.raw("cuCtxSetCurrent"), gpu.context

    def call(*arrays: Any) -> list[Any] | None:
        for variable, value in checked:
            if variable.get() is not value:
                return None
        params = held()
        if len(arrays) != count or params is None or driver.is_forked:
            return None
        whole: list[Any] = []
        for array, (dtype, dims) in zip(arrays, wanted):
            if type(array) is not result_class:
                return None
            given = array.value
            if type(given) is not DeviceArray or given.stream is not stream or given.shape != dims:
                return None
            if given.dtype is not dtype and given.dtype != dtype:
                return None
            whole.append(given)
        if make_current(own) != SUCCESS:
            return None
        context = contexts.take()
        try:
            context.take_arena()
            for dims, dtype, size in stored:
                whole.append(DeviceArray(pool.allocate(size, stream, "an output"), dims, dtype, stream))
            words, number = context.words, ARENA
            for given in whole:
                number += 1
                words[number] = given.buffer.address + given.offset
            context.place_params(params)
            scratch = gpu.scratch(context.scratch_bytes) if context.scratch_bytes else None
            if scratch is not None:
                context.place_scratch(scratch)
            for table in tables:
                context.run(table)
        finally:
            contexts.give(context)
        return [result_class(whole[number]) for number in returned]

    return call
