"""Complex values taken apart and put together. In memory a complex number is its real part, then its imaginary part;
kernels see a buffer of these parts."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.strips import Step, along, strips
from rlx.kernels.ir.extents import total
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.pointwise.complex_numbers import Conjugate, Imag, MakeComplex, Real


def _have_equal_dims(op: Op, operands: Sequence[Shape]) -> bool:
    return operands[0].dims == operands[1].dims


@op_kernel(Real, Imag, kind="complex")
def part(site: OpSite) -> None:
    (z,), (y,) = site.inputs, site.outputs
    first = 1 if isinstance(site.op, Imag) else 0

    def step(i: Value, lanes: int, mask: Value | None) -> None:
        value = site.k.load(z.buffer, i * 2 + first, lanes=lanes, stride=2, mask=mask)
        site.k.store(y.buffer, i, value, mask=mask)

    _each(site, step)


@op_kernel(MakeComplex, kind="complex", supports=_have_equal_dims)
def make_complex(site: OpSite) -> None:
    (re, im), (z,) = site.inputs, site.outputs

    def step(i: Value, lanes: int, mask: Value | None) -> None:
        values = [site.k.load(source.buffer, i, lanes=lanes, mask=mask) for source in (re, im)]
        if mask is None and lanes > 1:
            # Put together in registers: stores of every other element are single ones on most machines.
            pairs = [number * lanes + lane for lane in range(lanes) for number in (0, 1)]
            site.k.store(z.buffer, i * 2, site.k.shuffle(values[0], pairs, values[1]))
            return
        for number, value in enumerate(values):
            site.k.store(z.buffer, i * 2 + number, value, stride=2, mask=mask)

    _each(site, step)


@op_kernel(Conjugate, kind="complex")
def conjugate(site: OpSite) -> None:
    (z,), (y,) = site.inputs, site.outputs

    def step(i: Value, lanes: int, mask: Value | None) -> None:
        k = site.k
        if mask is None and lanes > 1:
            value = k.load(z.buffer, i * 2, lanes=2 * lanes)
            k.store(y.buffer, i * 2, k.shuffle(value, [n + 2 * lanes * (n % 2) for n in range(2 * lanes)], -value))
            return
        for number in (0, 1):
            value = site.k.load(z.buffer, i * 2 + number, lanes=lanes, stride=2, mask=mask)
            site.k.store(y.buffer, i * 2 + number, -value if number else value, stride=2, mask=mask)

    _each(site, step)


def _each(site: OpSite, step: Step) -> None:
    """Visit all elements; operands and results lie in memory without gaps."""
    k, (y, *_) = site.k, site.outputs
    with strips(k, k.as_index(1), total(k, y.dims)) as (_, start, stop):
        along(k, site.machine, [y.buffer.dtype], start, stop, step)
