"""Products of many rows with GGUF panels on tensor cores by weights that are written out: when they are taken, what is
launched and with which memory, and their code. On a GPU: `gpu_suite.py --only products --match codes`."""

import numpy as np
import pytest
from counted_code import CountedCode

import rlx
from backends.cuda.test_stored_codes import SM_90A, kernel_of
from rlx.backends.cuda import code
from rlx.backends.cuda.backend import CudaBackend
from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper import expanded_form, launching
from rlx.backends.cuda.hopper.expanded_form import LEAST_ROWS, ExpandedForm
from rlx.backends.cuda.hopper.product import product_text
from rlx.backends.cuda.hopper.product_shape import ProductShape
from rlx.ir.dtype import DType
from rlx.ir.tensor import building
from rlx.kernels.gpu.matmul_groups import GroupTiles, product_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.kernels.specs.products import Matrix, Product
from rlx.ops.lowered.quantized_panels import PanelMatMul
from rlx.quant.schemes import QuantScheme


def made(name, k, n, dtype, **options):
    kernel = kernel_of(name, k, n, dtype, **options)
    load = CountedCode()
    names = [p.name for p in kernel.params]
    return ExpandedForm(kernel.origin, names, SM_90A, load), names, load


@pytest.mark.parametrize(
    ("name", "dtype", "parts", "entries"),
    [
        ("Q4_K", "f32", 2, ["split_rows", "expand_codes", "product"]),
        ("NVFP4", "f32", 1, ["split_rows", "expand_codes", "product"]),
        ("Q4_K", "bf16", 0, ["expand_codes", "product"]),
        ("Q8_0", "f16", 0, ["expand_codes", "product"]),
    ],
)
def test_a_launch_writes_out_what_it_multiplies(fake, gpu, launched, name, dtype, parts, entries):
    form, names, load = made(name, 512, 1024, dtype)
    m, size = 600, DType.of(dtype).size_bytes
    words = [{"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}.get(n, m) for n in names]
    scratch = form.scratch_bytes(words, gpu)
    assert scratch == (4 * m * 512 if parts else 0) + 2 * max(1, parts) * 512 * 1024
    fake.tensor_maps.clear()
    assert form.launch(words, gpu.stream, launching.Surroundings(scratch=16 << 20))
    assert load.entries == entries and len(launched) == len(entries)
    (a, a_size, a_pitch, _), (b, b_size, b_pitch, _) = fake.tensor_maps
    assert (b_size, b_pitch) == ((512 * max(1, parts), 1024), 1024 * max(1, parts))
    if parts:
        assert (a, a_size, a_pitch) == (16 << 20, (1024, m), 2048) and b == (16 << 20) + 4 * m * 512
    else:
        assert (a, a_size, a_pitch, b) == (1 << 20, (512, m), 512 * size, 16 << 20)


def test_chips_without_wgmma_multiply_by_mma(fake, gpu, launched):
    kernel = kernel_of("Q4_K", 512, 1024, "f32", machine=machine_named("sm_86"))
    names, load = [p.name for p in kernel.params], CountedCode()
    form = ExpandedForm(kernel.origin, names, machine_named("sm_86"), load)
    assert form.name == "mma of codes that are written out" and not form.waits
    words = [{"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}.get(n, 600) for n in names]
    assert form.launch(words, gpu.stream, launching.Surroundings(scratch=16 << 20))
    assert load.entries == ["split_rows", "expand_codes", "mma_product"]
    assert launched[-1].shared_bytes <= 99 << 10 and form.tiles.shape(600, 1024, 84).split == 2
    names = {f.name for f in tensor_forms(kernel, machine_named("sm_86"))[0]}
    assert names == {"mma of codes", "mma of codes that are written out"}


def test_few_rows_and_little_memory_are_left_to_others(fake, gpu, launched, monkeypatch):
    form, names, _ = made("Q4_K", 512, 1024, "f32")
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}
    few = [addresses.get(n, LEAST_ROWS[2] - 1) for n in names]
    many = [addresses.get(n, LEAST_ROWS[2]) for n in names]
    assert not form.scratch_bytes(few, gpu) and not form.launch(
        few, gpu.stream, launching.Surroundings(scratch=16 << 20)
    )
    assert form.scratch_bytes(many, gpu) and not form.launch(many, gpu.stream)
    crooked = [w + 4 if n == "a" else w for n, w in zip(names, many)]
    assert not form.launch(crooked, gpu.stream, launching.Surroundings(scratch=16 << 20))
    monkeypatch.setattr(expanded_form, "_SHARE", 1 << 40)
    assert not form.scratch_bytes(many, gpu)
    assert not launched


def test_which_products_have_it():
    forms, _ = tensor_forms(kernel_of("Q4_K", 512, 64), SM_90A)
    assert [f.name for f in forms] == ["wgmma of codes that are written out", "mma of codes"]
    assert [f.name for f in tensor_forms(kernel_of("Q4_K", 512, 64, rows=4), SM_90A)[0]] == ["mma of codes"]
    assert tensor_forms(kernel_of("Q4_K", 512, 64, "f64"), SM_90A)[0] == ()


class Named:
    """Code by its name."""

    def __init__(self, name):
        self.name = name

    def allow_shared(self, size):
        pass


def test_layers_share_what_they_write_out(fake, gpu, monkeypatch):
    """One memory for all products of a program, and of the next one; held by nobody between runs."""
    monkeypatch.setattr(code, "tensor_forms", tensor_forms)
    monkeypatch.setattr(code.GpuCode, "function", lambda self, gpu: Named(self.name))
    names = []
    monkeypatch.setattr(launching, "launch", lambda function, shape, address, stream: names.append(function.name))

    def program(k):
        first, second = (PanelMatMul(QuantScheme.of_ggml("Q4_K"), n) for n in (512, 256))
        graph = rlx.Graph("layers")
        with building(graph):
            w = [
                graph.input(f"w{i}", op.panels(d, op.n).static_dims, "u8")
                for i, (op, d) in enumerate(((first, k), (second, 512)))
            ]
            graph.set_outputs([second(first(graph.input("x", ("B", k)), w[0]), w[1])])
        executable = CudaBackend().compile(graph, None)
        sizes = {n.op.key: n.shape.static_dims for n in graph.inputs if n.op.key != "x"}
        return lambda rows: executable.run(
            {"x": np.zeros((rows, k), "f4"), **{n: np.zeros(d, "u1") for n, d in sizes.items()}}, executable.prepare({})
        )

    run = program(256)
    run(8)
    assert names == ["code_rows"] * 2 and gpu._scratch is None
    names.clear()
    run(64)
    assert names == ["split_rows", "expand_codes", "product"] * 2
    kept = gpu._scratch
    assert kept.size == max(4 * 64 * 256 + 4 * 512 * 256, 4 * 64 * 512 + 4 * 256 * 512)
    run(64)
    assert gpu._scratch is kept
    program(1024)(64)
    assert gpu._scratch is not kept and gpu._scratch.size == 4 * 64 * 1024 + 4 * 512 * 1024


def test_two_products_of_one_a_write_out_both(fake, gpu, launched):
    form, names, load = made("Q4_K", 512, 128, "bf16", then=lambda y: y[:, :64] * y[:, 64:])
    words = [{"a": 1 << 20, "b0": 2 << 20, "b1": 2 << 20, "c": 3 << 20}.get(n, 512) for n in names]
    assert form.scratch_bytes(words, gpu) == 2 * 2 * 512 * 64
    assert form.launch(words, gpu.stream, launching.Surroundings(scratch=16 << 20))
    assert len(launched) == 3 and load.entries == ["expand_codes", "product"]
    assert [m[0] for m in fake.tensor_maps] == [1 << 20, 16 << 20, (16 << 20) + 2 * 512 * 64]


@pytest.mark.parametrize("parts", [1, 2])
def test_parts_meet_each_other(parts):
    """The product of sums of numbers: all terms but that of the two rests."""
    tiles = GroupTiles(columns=8, depth=4, stages=3, rows=4, groups=2, slab=4, band=2, parts=parts)
    m, n, k = 9, 10, 12
    product = Product(
        m, n, k, Matrix("a", DType.BF16, 2 * k), (Matrix("b0", DType.BF16, 1, parts * k),), Matrix("c", DType.F32, n)
    )
    kernel = product_kernel(product, tiles)
    verify(kernel)
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, s).astype(DType.BF16.numpy) for s in ((m, 2, k), (n, parts, k)))
    c = np.full((m, n), np.nan, "f4")
    sizes = {"blocks": 2, "row_tiles": 2, "column_tiles": 2, "steps": (parts + 1) * k // tiles.depth}
    interpret(kernel, {"a": a, "b0": b, "c": c, **sizes}, seed=1)
    (rest, rounded), weights = a.astype("f4").swapaxes(0, 1), b.astype("f4").swapaxes(0, 1)
    wanted = (rest + rounded) @ weights[0].T
    if parts == 2:
        wanted = wanted + rounded @ weights[1].T
    np.testing.assert_array_equal(c, wanted)


def test_code():
    form, _, _ = made("Q4_K", 512, 1024, "f32")
    ptx = form.tiles.ptx(256)
    assert "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16" in ptx and ".local" not in ptx
    # Blocks that share tiles, which few rows have.
    shared = form.tiles.ptx(128, 4)
    assert "ld.shared::cluster.v2.f32" in shared and ".local" not in shared
    assert shared != product_text("product", ProductShape(128, 1, True, "bf16", sharing=4), form.tiles.finish, "")
