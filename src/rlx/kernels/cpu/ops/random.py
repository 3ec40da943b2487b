"""Random bits: Philox4x32-10, bit by bit as `rlx.ir.rng` defines it, some blocks of four words in each vector."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dims import product
from rlx.ir.dtype import DType
from rlx.kernels.cpu.ops import OpSite, Slab, op_kernel
from rlx.kernels.cpu.ops.strips import strips
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import Value
from rlx.ops.random.randomness import RandomBits

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF
# Blocks per parallel iteration.
BLOCKS = 2048


@op_kernel(RandomBits, kind="random")
def random_bits(site: OpSite) -> None:
    """Each key has a row of words; a row is a whole number of blocks but for its end."""
    k, op = site.k, site.op
    assert isinstance(op, RandomBits)
    (y,) = site.outputs
    lead = y.dims[: len(y.dims) - len(op.dims)]
    count = site.size(product(op.dims))
    lanes = site.machine.lanes(DType.U64)
    with strips(k, total(k, lead), k.ceildiv(count, 4), BLOCKS) as (row, start, stop):
        stream = _Stream(site, unflatten(row, lead))
        base = row * count
        # Vectors of blocks of which every word is wanted, then single blocks.
        whole = start + k.max(0, k.min(stop, count // 4) - start) // lanes * lanes
        if lanes > 1:
            with k.loop("v", start, whole, lanes) as i:
                k.store(y.buffer, base + i * 4, interleaved(k, stream.words(i, lanes)))
        with k.loop("i", whole if lanes > 1 else start, stop) as i:
            for number, word in enumerate(stream.words(i, 1)):
                with k.when(i * 4 + number < count):
                    k.store(y.buffer, base + i * 4 + number, word)


class _Stream:
    """The words of one key."""

    def __init__(self, site: OpSite, batch: Sequence[Value]) -> None:
        assert isinstance(site.op, RandomBits)
        self.k, self.stream = site.k, site.op.stream
        key, *first = site.inputs
        start = _at(key, key.dims[:-1], batch)
        self.key = [self.k.cast(self.k.load(key.buffer, start + key.strides[-1] * i), DType.U64) for i in range(2)]
        self.block0 = self.k.load(first[0].buffer, _at(first[0], first[0].dims, batch)) if first else None

    def words(self, i: Value, lanes: int) -> list[Value]:
        """The four words of the blocks i, i + 1, ..; 32-bit words in 64 bits, so that nothing ever wraps."""
        k = self.k
        block = k.splat(k.cast(i, DType.U64), lanes)
        if lanes > 1:
            block = block + k.iota(DType.U64, lanes)
        if self.block0 is not None:
            block = block + k.splat(self.block0, lanes)
        c = [block & _WORD, block >> 32, k.const(self.stream, block.type), k.const(0, block.type)]
        k0, k1 = self.key
        for _ in range(_ROUNDS):
            p0, p1 = c[0] * _MULTIPLIERS[0], c[2] * _MULTIPLIERS[1]
            c = [(p1 >> 32) ^ c[1] ^ k0, p1 & _WORD, (p0 >> 32) ^ c[3] ^ k1, p0 & _WORD]
            k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
        return [k.cast(word, DType.U32) for word in c]


def _at(slab: Slab, dims: Sequence[Value], batch: Sequence[Value]) -> Value:
    """Where the entry of a batch begins in an operand that broadcasts to it."""
    own = batch[len(batch) - len(dims) :]
    return slab.at(*(i if size != 1 else 0 for i, size in zip(own, slab.shape.dims)))


def interleaved(k: KernelBuilder, vectors: Sequence[Value]) -> Value:
    """The first lanes of four vectors, then their second lanes, and so on."""
    lanes = vectors[0].lanes
    pairs = [
        k.shuffle(a, [i // 2 + lanes * (i % 2) for i in range(2 * lanes)], b) for a, b in (vectors[:2], vectors[2:])
    ]
    return k.shuffle(pairs[0], [i // 4 * 2 + i % 2 + 2 * lanes * (i % 4 // 2) for i in range(4 * lanes)], pairs[1])
