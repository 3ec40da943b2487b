"""Thumb objects straight from LLVM: the same codes as the program's, here and on every core; clear refusals."""

import ctypes
import shutil

import numpy as np
import pytest
from llvmlite import binding

from integer_programs.float_networks import (
    CONVNET_DIMS,
    RESIDUAL_DIMS,
    SEQUENCE_DIMS,
    SEQUENCES,
    convnet,
    images,
    residual,
    traced,
)
from integer_programs.random_steps import KINDS, codes_for, random_program
from rlx.backends.cortex_m.arena import plan_arena
from rlx.backends.cortex_m.checking import run_in_qemu
from rlx.backends.cortex_m.project import CORES
from rlx.backends.cortex_m.thumb import thumb_object, thumb_text
from rlx.cortexm import export
from rlx.errors import RlxError
from rlx.kernels.emit.llvm_codegen import create_jit
from rlx.kernels.machines import host
from rlx.quantized import quantize

qemu = pytest.mark.skipif(
    not shutil.which("arm-none-eabi-gcc") or not shutil.which("qemu-system-arm"),
    reason="needs arm-none-eabi-gcc and qemu-system-arm (make tools)",
)


NETWORKS = [(residual, RESIDUAL_DIMS), (convnet, CONVNET_DIMS), *((f, SEQUENCE_DIMS) for f in SEQUENCES)]


def network(function, dims, **options):
    return quantize(traced(function, dims), {}, [{"x": images(40, dims)}], name="net", **options)


def run_here(program, codes):
    """The same IR, compiled for this machine."""
    name = f"{program.name}_run"
    library = binding.JITLibraryBuilder().add_ir(thumb_text(program, host().triple)).export_symbol(name)
    loaded = library.link(create_jit(host()), "program")
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded[name])
    plan, result = plan_arena(program), []
    for one in codes:
        arena = np.zeros(plan.size // 4 + 1, np.uint32).view(np.uint8)
        arena[plan.offsets[0] :][: one.nbytes] = one.reshape(-1).view(np.uint8)
        run(arena.ctypes.data)
        value = program.result
        result.append(arena[plan.offsets[-1] :][: value.size_bytes].view(value.dtype.numpy).reshape(value.dims))
    return np.stack(result)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_step_here(kind):
    rng = np.random.default_rng(51)
    for _ in range(4):
        program = random_program(kind, rng)
        codes = codes_for(rng, program.input, 40)
        assert run_here(program, codes).tolist() == program.run(codes).tolist(), program


@pytest.mark.parametrize("options", [{}, {"bits": 4}, {"bits": 2}, {"activations": "i16"}], ids=str)
@pytest.mark.parametrize("function, dims", NETWORKS, ids=lambda v: getattr(v, "__name__", ""))
def test_networks_here(function, dims, options):
    program = network(function, dims, **options)
    codes = program.encode(images(30, dims, seed=8))
    assert run_here(program, codes).tolist() == program.run(codes).tolist()


@pytest.mark.parametrize("core", CORES.values(), ids=lambda c: c.name)
def test_objects_are_thumb_code_for_every_core(core):
    data = thumb_object(network(convnet, CONVNET_DIMS), core)
    assert data[:6] == b"\x7fELF\x01\x01" and int.from_bytes(data[18:20], "little") == 40
    assert all(name in data for name in (b"net_run", b"net_input", b"net_output"))
    assert data == thumb_object(network(convnet, CONVNET_DIMS), core), "the same bytes each time"
    assert not any(word in data for word in (b"mem", b"float", b"double")), "no function of a library"


def test_an_export_of_an_object(tmp_path):
    export(network(convnet, CONVNET_DIMS), tmp_path / "out", form="object")
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "CMakeLists.txt",
        "Makefile",
        "host_files.h",
        "link.ld",
        "main.c",
        "net.h",
        "net.o",
        "startup.c",
    ]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"form": "rust"}, "form=c or form=object is known, got 'rust'"),
        ({"form": "object", "check": "host"}, "an object runs on its core alone"),
    ],
)
def test_refused_options(options, message, tmp_path):
    with pytest.raises(RlxError, match=message):
        export(network(convnet, CONVNET_DIMS), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.targets
@qemu
@pytest.mark.parametrize("core", CORES.values(), ids=lambda c: c.name)
def test_objects_in_qemu(core, tmp_path):
    for n, (function, dims) in enumerate(NETWORKS):
        program, out = network(function, dims), tmp_path / str(n)
        export(program, out, form="object", cpu=core.name)
        codes = program.encode(images(40, dims, seed=8))
        assert run_in_qemu(program, out, "net", core, codes).tolist() == program.run(codes).tolist()
