"""Compiled programs as files: `compiled.save("m.rlxc")`, `rlx.load_compiled("m.rlxc").run({...})`.

A file has the machine code of all kernels and of what runs them, the weights in the form in which kernels read them,
and what the program takes and gives. Nothing is compiled to run it, and LLVM is not loaded. It belongs to the kind of
CPU and the version of rlx that it was made by; any other, and any damage, is an error when it is loaded.

    weights="inside"    in the file; they are part of the program then, and cannot be set
    weights="beside"    the same in a file of their own, `m.rlxc.weights`, which must stay beside it
    weights="none"      not at all: `set_param` gives them, as for a program that was just compiled
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import rlx
from rlx.backends.api import Prepared
from rlx.backends.cpu.executable import CpuExecutable
from rlx.backends.cpu.executor import executor_code, executor_key, use_executor
from rlx.backends.native.code_cache import object_cache
from rlx.backends.native.kernels import Loader
from rlx.backends.program.container import Bytes, read_parts, write_parts
from rlx.backends.program.params import CpuParams
from rlx.backends.program.program import HostStep, LoopStep, NativeStep, Programs
from rlx.backends.program.program_json import programs_from_json, programs_to_json
from rlx.backends.program.signature import Signature
from rlx.errors import BackendError, FormatError, RlxError
from rlx.ir.dims import DimConstraint, as_offset
from rlx.ir.index_checks import IdCheck
from rlx.ir.op import REGISTRY
from rlx.ir.shape import Shape, parse_shape
from rlx.ir.text.graph_text import parse_value, show_value
from rlx.kernels.machines import host
from rlx.ops.control.custom import Custom
from rlx.ops.control.effects import HostCallback

if TYPE_CHECKING:
    from rlx.compile.compiler import CompileResult

WEIGHTS = ("inside", "beside", "none")
_EXECUTOR = "executor"


def save_program(
    path: str | Path, signature: Signature, programs: Programs, prepared: Prepared | None, weights: str
) -> None:
    """Write a program of the device 'cpu'; see the module for `weights`."""
    if weights not in WEIGHTS:
        raise RlxError(f"save: weights is one of {', '.join(WEIGHTS)}, got {weights!r}")
    programs = programs if weights == "none" else Programs(programs.main)
    text = None if _calls_python(programs) else programs_to_json(programs, any_constants=True)
    if text is None:
        raise BackendError(f"save: @{signature.name} cannot be saved: {_what_stays(programs)}")
    head: dict[str, Any] = {
        "rlx": rlx.__version__,
        "machine": repr(host()),
        _EXECUTOR: executor_key(host()),
        "weights": weights,
        "signature": _write_signature(signature),
        "params": [],
    }
    parts: dict[str, bytes | memoryview] = {"programs": text.encode(), _EXECUTOR: executor_code()}
    parts |= {f"code {key}": code for key, code in _codes(programs).items()}
    place, given = Path(path), {}
    if weights != "none":
        if not isinstance(prepared, CpuParams):
            raise RlxError(
                f"save: @{signature.name} has weights that are not set; set them, or save with weights='none'"
            )
        pairs = list(zip(programs.main.params, prepared.arrays))
        head["params"] = [[leaf.name, str(Shape(a.shape, leaf.shape.dtype))] for leaf, a in pairs]
        given = {
            f"weight {i}": np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for i, (_, a) in enumerate(pairs)
        }
    if weights == "beside":
        write_parts(weights_file(place), {"program": signature.name}, given)
        given = {}
    write_parts(place, head, {**parts, **given})


class Loaded(NamedTuple):
    """A program of a file, and its weights if it has some."""

    signature: Signature
    executable: CpuExecutable
    prepared: CpuParams | None


def load_program(path: str | Path, threads: int | None = None) -> Loaded:
    """The program of a file. Load what you trust: it is native code."""
    place = Path(path)
    head, parts = read_parts(place)
    try:
        return _loaded(place, head, parts, threads)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, RlxError):
            raise
        raise FormatError(f"{place}: what is in it makes no program: {error}") from None


def _loaded(place: Path, head: Mapping[str, Any], parts: Mapping[str, Bytes], threads: int | None) -> Loaded:
    if head["rlx"] != rlx.__version__:
        raise FormatError(f"{place}: it was saved by rlx {head['rlx']}, this is {rlx.__version__}; save it again")
    if head["machine"] != repr(host()):
        raise FormatError(f"{place}: its code is for another kind of CPU than this one ({host().name}); save it here")
    codes = {name.removeprefix("code "): part.tobytes() for name, part in parts.items() if name.startswith("code ")}
    # That of other sources of the same version would read other records: this rlx makes its own.
    if head.get(_EXECUTOR) == executor_key(host()):
        use_executor(parts[_EXECUTOR].tobytes())
    programs = programs_from_json(parts["programs"].tobytes(), Loader(host(), _Codes(codes)))
    if programs is None:
        raise FormatError(f"{place}: code of the program is missing; save it again")
    executable = CpuExecutable(programs, lambda: _no_report(place), threads)
    signature = _read_signature(head["signature"])
    if head["weights"] == "none":
        return Loaded(signature, executable, None)
    given = read_parts(weights_file(place))[1] if head["weights"] == "beside" else parts
    arrays = {}
    for number, (name, text) in enumerate(head["params"]):
        shape = parse_shape(text)
        arrays[str(name)] = given[f"weight {number}"].view(shape.dtype.numpy).reshape(shape.static_dims)
    return Loaded(signature, executable, CpuParams(programs.main, arrays))


class _Codes:
    """Code that comes with a program, in the place of the object cache."""

    def __init__(self, codes: Mapping[str, bytes]) -> None:
        self._codes = codes

    def get(self, key: str) -> bytes | None:
        return self._codes.get(key)

    def has(self, key: str) -> bool:
        return key in self._codes

    def put(self, key: str, code: bytes) -> None:
        """Nothing is added to a program."""


def weights_file(path: Path) -> Path:
    """The file of the weights that are kept beside a program."""
    return path.with_name(f"{path.name}.weights")


def _codes(programs: Programs) -> dict[str, bytes]:
    """The object code of all kernels."""
    objects = object_cache()
    found: dict[str, bytes] = {}
    for program in (programs.main, *(p.program for p in programs.prepare)):
        for step in program.steps:
            if isinstance(step, NativeStep) and step.code.key not in found:
                code = objects.get(step.code.key) if objects is not None else None
                if code is None:
                    raise BackendError(
                        f"save: the code of kernel {step.code.name} is not on disk any more; "
                        "make RLX_CACHE_DIR a folder that can be written, and compile again"
                    )
                found[step.code.key] = code
    return found


def _calls_python(programs: Programs) -> bool:
    """Whether a step runs code of the user's, which is known in this process alone."""
    steps = (s for p in (programs.main, *(p.program for p in programs.prepare)) for s in p.steps)
    return any(isinstance(s, HostStep) and isinstance(s.op, Custom | HostCallback) for s in steps)


def _what_stays(programs: Programs) -> str:
    """Why programs cannot be written."""
    for program in (programs.main, *(p.program for p in programs.prepare)):
        for step in program.steps:
            if isinstance(step, LoopStep):
                return f"its {step.op.mnemonic} is a loop of kernels, which has no form on disk yet"
            if isinstance(step, HostStep):
                return f"its {step.op.mnemonic} runs Python code"
    return "a kernel of it cannot be written"


def _no_report(path: Path) -> CompileResult:
    raise BackendError(f"{path.name} was loaded from a file, which has no report; ask where it was compiled")


def _write_signature(signature: Signature) -> dict[str, Any]:
    def types(shapes: Mapping[str, Shape]) -> list[list[str]]:
        return [[name, str(shape)] for name, shape in shapes.items()]

    return {
        "name": signature.name,
        "inputs": types(signature.inputs),
        "params": types(signature.params),
        "outputs": [str(shape) for shape in signature.outputs],
        "aliases": [[output, key] for output, key in signature.aliases.items()],
        "constraints": [[str(c.left), str(c.right), c.reason, c.relation] for c in signature.constraints],
        "ids": [
            [c.op.mnemonic, {k: show_value(v) for k, v in c.op.shown_attributes.items()}, c.key, [*map(str, c.sizes)]]
            for c in signature.id_checks
        ],
    }


def _read_signature(document: Mapping[str, Any]) -> Signature:
    def types(rows: Sequence[Sequence[str]]) -> dict[str, Shape]:
        return {str(name): parse_shape(text) for name, text in rows}

    return Signature(
        str(document["name"]),
        types(document["inputs"]),
        types(document["params"]),
        tuple(parse_shape(text) for text in document["outputs"]),
        {int(output): str(key) for output, key in document["aliases"]},
        tuple(DimConstraint(as_offset(a), as_offset(b), why, how) for a, b, why, how in document["constraints"]),
        tuple(
            IdCheck(
                REGISTRY[mnemonic](**{k: parse_value(v) for k, v in attributes.items()}),
                str(key),
                tuple(as_offset(s) for s in sizes),
            )
            for mnemonic, attributes, key, sizes in document["ids"]
        ),
    )
