"""A program for browsers with WebGPU, which lies beside the one in WebAssembly: `gpu.json.gz`, and those weights that
its kernels read in another order.

The document is that of `web_program`, and has as well:

    prelude      functions that all kernels may call
    kernels      in the order of their numbers: `sizes` of the elements of each parameter, 0 for a number; `threads` of
                 a workgroup; words of `arguments` and, for each thread, of `scratch`; the words of `tables`; `forms`
    buffers      the sizes of the parts of memory that are one buffer each: whole arrays, as many as a binding holds
    copy         the kernel that copies bytes which are no whole words, and the bytes of one of its iterations

A form is the text of a kernel and what it does with each memory; which memory is bound where is known in the browser,
which writes the functions for it. The second form is for elements that do not begin where a word does; it is null where
all do.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rlx.backends.api import CompileOptions
from rlx.backends.memory import Array
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program.copies import CHUNK, copy_kernel
from rlx.backends.program.program import LoopStep, Operand, Program, build_program
from rlx.backends.program.signature import Signature
from rlx.backends.text_gpu.code import TextCode, codes_of
from rlx.backends.text_gpu.executable import refuse_doubles
from rlx.backends.wasm.code import steps_inside
from rlx.backends.wasm.prepared import arrays_of
from rlx.backends.wasm.web_program import WebProgram
from rlx.backends.wgpu.code import WgslCode, loader
from rlx.ir.dim_algebra import DimAtom
from rlx.ir.graph import Graph
from rlx.ir.shape import Size
from rlx.kernels.emit.wgsl_emit import open_kernel
from rlx.kernels.emit.wgsl_text import Prelude
from rlx.kernels.machines import WGSL

# What every implementation of WebGPU binds at a time.
BINDING_BYTES = 128 << 20


class GpuProgram(NamedTuple):
    """The program with its weights, and the document of its file."""

    web: WebProgram
    document: Mapping[str, Any]

    def file(self, parts: Sequence[Mapping[str, Any]]) -> bytes:
        """The content of `gpu.json.gz`; texts of kernels are repetitive."""
        text = json.dumps({**self.document, "parts": [*parts]}, separators=(",", ":"), allow_nan=False)
        return gzip.compress(text.encode(), 9, mtime=0)


def gpu_program(graph: Graph, signature: Signature, params: Mapping[str, Array]) -> GpuProgram:
    refuse_doubles(graph, "wgpu", "WGSL")
    compiled = compile_with_options(graph, "wgpu", CompileOptions())
    program = build_program(compiled.lir, loading=loader(WGSL).loading)
    codes = codes_of(program)
    web = WebProgram(program, codes, signature, arrays_of(program, compiled, params), for_gpu=True)
    copies = bool(program.moved) or any(isinstance(s, LoopStep) for s in steps_inside(program))
    has_odd_places = copies or not _begins_at_words(program)
    prelude = Prelude()
    kernels = [_kernel(code, prelude, has_odd_places) for code in codes.values()]
    copy = None
    if copies:
        copy = {"kernel": len(kernels), "chunk": CHUNK}
        kernels.append(_kernel(loader(WGSL).load(copy_kernel()).code, prelude, True))
    document = {
        **web.document,
        "prelude": prelude.text,
        "kernels": kernels,
        "buffers": list(buffer_sizes(web)),
        "copy": copy,
    }
    return GpuProgram(web, document)


def _kernel(code: TextCode, prelude: Prelude, has_odd_places: bool) -> dict[str, Any]:
    assert isinstance(code, WgslCode)
    has_parts = any(0 < size < 4 for size in code.sizes)
    forms = [code.words, code.anywhere if has_parts and has_odd_places else None]
    made = [None if form is None else open_kernel(form, prelude) for form in forms]
    return {
        "name": code.name,
        "sizes": list(code.sizes),
        "threads": code.threads,
        "arguments": code.argument_words,
        "scratch": code.scratch_words,
        "tables": code.tables.tolist(),
        "forms": [None if form is None else {"text": form.text, "calls": form.calls} for form in made],
    }


def _begins_at_words(program: Program) -> bool:
    """Whether all operands are known to begin at a multiple of 4 bytes."""
    places = (
        a.place.offset for step in program.steps for a in getattr(step, "arguments", ()) if isinstance(a, Operand)
    )
    return all(map(_is_words, places))


def _is_words(size: Size) -> bool:
    if isinstance(size, int):
        return size % 4 == 0
    return all(coefficient % 4 == 0 or any(map(_is_factor_of_words, term)) for term, coefficient in size.terms)


def _is_factor_of_words(factor: str | DimAtom) -> bool:
    return isinstance(factor, DimAtom) and factor.kind in ("max", "min") and all(map(_is_words, factor.args))


def buffer_sizes(web: WebProgram, most: int = BINDING_BYTES) -> Iterator[int]:
    """How the memory of weights is cut into buffers: between arrays, so that most kernels bind one buffer for each."""
    start = 0
    for (offset, _), end in zip(web.pieces, [*(offset for offset, _ in web.pieces[1:]), web.weight_bytes]):
        if end - start > most and offset > start:
            yield offset - start
            start = offset
    if web.weight_bytes > start:
        yield web.weight_bytes - start
