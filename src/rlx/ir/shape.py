"""`Shape`: dims plus dtype, the type of every value; and the shape rules that ops share.

>>> Shape.of("f32[4, S]")
f32[4,S]
>>> broadcast(Shape((4, 1), "f32"), Shape(("S",), "f16"))
f32[4,S]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rlx.errors import ParseError, ShapeError
from rlx.ir.dim_binding import by_name
from rlx.ir.dims import LARGEST_SIZE, Dim, as_dim, bind_dim, product, require_at_most, require_equal
from rlx.ir.dtype import DType, DTypeLike

Size = int | Dim
Dims = tuple[Size, ...]
# A size that may be negative, such as an amount of padding.
Offset = int | Dim

# As many as arrays of NumPy may have.
MOST_AXES = 64


class Shape:
    """Dims and dtype. Immutable, hashable, compared by value."""

    __slots__ = ("_hash", "dims", "dtype")

    dims: Dims
    dtype: DType

    def __init__(self, dims: Iterable[int | str | Dim], dtype: DTypeLike = DType.F32) -> None:
        self.dims = tuple(d if type(d) is int and 0 <= d <= LARGEST_SIZE else as_dim(d) for d in dims)
        if len(self.dims) > MOST_AXES:
            raise ShapeError(f"a value has at most {MOST_AXES} axes, got {len(self.dims)}")
        self.dtype = dtype if type(dtype) is DType else DType.of(dtype)
        self._hash = hash((self.dims, self.dtype))

    @staticmethod
    def scalar(dtype: DTypeLike = DType.F32) -> Shape:
        return Shape((), dtype)

    @staticmethod
    def from_dims(dims: Iterable[int | str | Dim], dtype: DTypeLike = DType.F32) -> Shape:
        return Shape(dims, dtype)

    @staticmethod
    def batch_seq(batch: int | str | Dim, seq: int | str | Dim, hidden: int, dtype: DTypeLike = DType.F32) -> Shape:
        return Shape((batch, seq, hidden), dtype)

    @staticmethod
    def batch_seq_2d(batch: int | str | Dim, seq: int | str | Dim, dtype: DTypeLike = DType.F32) -> Shape:
        return Shape((batch, seq), dtype)

    @staticmethod
    def batch_seq_heads(
        batch: int | str | Dim, seq: int | str | Dim, heads: int, head_dim: int, dtype: DTypeLike = DType.F32
    ) -> Shape:
        return Shape((batch, seq, heads, head_dim), dtype)

    @staticmethod
    def of(value: Shape | str | tuple[Sequence[int | str | Dim], DTypeLike]) -> Shape:
        """A Shape from a Shape, text such as `f32[4,S]`, or a (dims, dtype) pair."""
        if isinstance(value, Shape):
            return value
        if isinstance(value, str):
            return parse_shape(value)
        dims, dtype = value
        return Shape(dims, dtype)

    @property
    def rank(self) -> int:
        return len(self.dims)

    def dim(self, axis: int) -> int | Dim:
        return self.dims[axis]

    @property
    def is_static(self) -> bool:
        return all(type(d) is int for d in self.dims)

    @property
    def static_dims(self) -> tuple[int, ...]:
        """The dims as ints; an error when one is symbolic."""
        for d in self.dims:
            if isinstance(d, Dim):
                raise ShapeError(f"{self} has the symbolic dimension {d} where a fixed size is needed; bind it first")
        return self.dims  # type: ignore[return-value]

    def dynamic_symbols(self) -> tuple[str, ...]:
        if self.is_static:
            return ()
        found: set[str] = set()
        for d in self.dims:
            if isinstance(d, Dim):
                found.update(d.symbols)
        return tuple(sorted(found))

    def bind(self, binding: Mapping[str, int | Dim]) -> Shape:
        """The shape with symbols replaced; symbols that are not bound stay."""
        if self.is_static:
            return self
        sizes = by_name(binding)
        return Shape((bind_dim(d, sizes) for d in self.dims), self.dtype)

    @property
    def element_count(self) -> int | Dim:
        return product(self.dims)

    @property
    def byte_size(self) -> int | Dim:
        return self.element_count * self.dtype.size_bytes

    def num_elements(self) -> int | None:
        """Element count, or None while a dim is symbolic."""
        count = self.element_count
        return count if isinstance(count, int) else None

    def size_bytes(self) -> int | None:
        """Byte size, or None while a dim is symbolic."""
        size = self.byte_size
        return size if isinstance(size, int) else None

    def with_dims(self, dims: Iterable[int | str | Dim]) -> Shape:
        return Shape(dims, self.dtype)

    def with_dim(self, axis: int, dim: int | str | Dim) -> Shape:
        axis = normalize_axis(axis, self.rank, "with_dim")
        return Shape((*self.dims[:axis], as_dim(dim), *self.dims[axis + 1 :]), self.dtype)

    def with_dtype(self, dtype: DTypeLike) -> Shape:
        return Shape(self.dims, dtype)

    def broadcast_with(self, other: Shape) -> Shape:
        return broadcast(self, other)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Shape) and self.dtype is other.dtype and self.dims == other.dims

    def __hash__(self) -> int:
        return self._hash

    def __len__(self) -> int:
        return len(self.dims)

    def __iter__(self) -> Iterator[int | Dim]:
        return iter(self.dims)

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(str(d) for d in self.dims)}]"

    __repr__ = __str__


_SHAPE = re.compile(r"\s*(\w+)\s*\[([^\[\]]*)\]\s*")


def split_commas(text: str) -> list[str]:
    """The parts of `text` between commas that are not inside parentheses; an empty text has no parts."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    if text[start:].strip() or parts:
        parts.append(text[start:])
    return parts


def parse_shape(text: str) -> Shape:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ParseError(f"{text!r} is not a type; write it like f32[4,S]")
    return Shape(split_commas(match.group(2)), match.group(1))


def normalize_axis(axis: int, rank: int, op: str) -> int:
    """`axis` counted from the front; an error when it is out of range."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{op}: axis {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Iterable[int], rank: int, op: str) -> tuple[int, ...]:
    """Axes counted from the front, sorted; an error when one is out of range or named twice."""
    result = tuple(sorted(normalize_axis(a, rank, op) for a in axes))
    if len(set(result)) != len(result):
        raise ShapeError(f"{op}: axes {tuple(axes)} name one axis twice (rank {rank})")
    return result


def _broadcast_dim(a: int | Dim, b: int | Dim, reason: str) -> int | Dim | None:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if not require_equal(a, b, reason):
        return None
    # One of them is symbolic and must turn out equal; the fixed size says more.
    return b if isinstance(b, int) else a


def broadcast_dims(a: Dims, b: Dims, op: str = "broadcast") -> Dims:
    """NumPy broadcasting, right-aligned. A size that must match at run time is recorded as a constraint."""
    if a == b:
        return a
    if len(a) < len(b):
        return broadcast_dims(b, a, op)
    result = list(a)
    for i, d in enumerate(b, start=len(a) - len(b)):
        joined = _broadcast_dim(a[i], d, op)
        if joined is None:
            raise ShapeError(f"{op}: {_dims_text(a)} and {_dims_text(b)} do not broadcast: {a[i]} against {d}")
        result[i] = joined
    return tuple(result)


def _dims_text(dims: Dims) -> str:
    return f"[{','.join(str(d) for d in dims)}]"


def broadcast(a: Shape, b: Shape, op: str = "broadcast") -> Shape:
    return Shape(broadcast_dims(a.dims, b.dims, op), a.dtype.promote(b.dtype))


def binary_shape(a: Shape, b: Shape) -> Shape:
    return broadcast(a, b)


def unary_shape(x: Shape) -> Shape:
    return x


def cast_shape(x: Shape, dtype: DTypeLike) -> Shape:
    return x.with_dtype(dtype)


def compare_shape(a: Shape, b: Shape) -> Shape:
    return Shape(broadcast_dims(a.dims, b.dims, "compare"), DType.BOOL)


def softmax_shape(x: Shape) -> Shape:
    return x


def attention_shape(q: Shape) -> Shape:
    return q


def matmul_shape(a: Shape, b: Shape, op: str = "matmul") -> Shape:
    """`[..,M,K] x [..,K,N] -> [batch..,M,N]`, batch dims broadcast."""
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(f"{op}: both operands need rank 2 or more, got {a} and {b}")
    if not require_equal(a.dims[-1], b.dims[-2], op):
        raise ShapeError(f"{op}: the inner sizes differ, {a.dims[-1]} against {b.dims[-2]}, in {a} x {b}")
    batch = broadcast_dims(a.dims[:-2], b.dims[:-2], op)
    return Shape((*batch, a.dims[-2], b.dims[-1]), a.dtype.promote(b.dtype))


def reduce_shape(x: Shape, axes: Iterable[int], keep_dim: bool, op: str = "reduce") -> Shape:
    """Axes dropped, or set to 1 with `keep_dim`."""
    chosen = normalize_axes(axes, x.rank, op)
    if keep_dim:
        return x.with_dims(1 if i in chosen else d for i, d in enumerate(x.dims))
    return x.with_dims(d for i, d in enumerate(x.dims) if i not in chosen)


def transpose_shape(x: Shape, perm: Sequence[int]) -> Shape:
    if sorted(perm) != list(range(x.rank)):
        raise ShapeError(f"transpose: {tuple(perm)} is not a permutation of the {x.rank} axes of {x}")
    return x.with_dims(x.dims[p] for p in perm)


def narrow_shape(x: Shape, axis: int, length: int | Dim, start: int | Dim = 0) -> Shape:
    axis = normalize_axis(axis, x.rank, "narrow")
    end, size = start + length, x.dims[axis]
    if not (require_at_most(0, start, "narrow") and require_at_most(end, size, "narrow")):
        raise ShapeError(f"narrow: {start}..{end} exceeds axis {axis} of {x}")
    return x.with_dim(axis, length)


def concat_shape(shapes: Sequence[Shape], axis: int) -> Shape:
    """Sizes along `axis` are added (symbolic ones too); all others must agree."""
    if not shapes:
        raise ShapeError("concat: needs at least one operand")
    first = shapes[0]
    axis = normalize_axis(axis, first.rank, "concat")
    total: int | Dim = 0
    for shape in shapes:
        if shape.rank != first.rank or shape.dtype is not first.dtype:
            raise ShapeError(f"concat: operands need one rank and dtype, got {first} and {shape}")
        for i in range(first.rank):
            if i != axis and not require_equal(first.dims[i], shape.dims[i], "concat"):
                raise ShapeError(f"concat: {first} and {shape} differ on axis {i}, which is not the joined axis {axis}")
        total = total + shape.dims[axis]
    return first.with_dim(axis, total)


def gather_shape(table: Shape, index: Shape, axis: int) -> Shape:
    axis = normalize_axis(axis, table.rank, "gather")
    return table.with_dims((*table.dims[:axis], *index.dims, *table.dims[axis + 1 :]))


def reshape_shape(x: Shape, new_dims: Sequence[int | str | Dim]) -> Shape:
    """At most one -1, which takes what is left; the element count must stay the same."""
    free = [i for i, d in enumerate(new_dims) if isinstance(d, int) and d == -1]
    if len(free) > 1:
        raise ShapeError(f"reshape: only one -1 is allowed, got {tuple(new_dims)}")
    known = [as_dim(d) for i, d in enumerate(new_dims) if i not in free]
    have, want = x.element_count, product(known)
    if not free:
        if not require_equal(have, want, "reshape"):
            raise ShapeError(f"reshape: {x} has {have} elements, the new shape {_dims_text(tuple(known))} has {want}")
        return x.with_dims(known)
    if want == 0:
        raise ShapeError(f"reshape: -1 cannot be inferred beside a size of 0 in {tuple(new_dims)}")
    rest = have // want
    if isinstance(rest * want - have, int) and rest * want != have:
        raise ShapeError(f"reshape: {x} has {have} elements, which {tuple(new_dims)} does not divide")
    require_equal(rest * want, have, "reshape")
    known.insert(free[0], rest)
    return x.with_dims(known)


def leading_flatten_fused_shape(x: Shape) -> Shape:
    """`[a, b, .., H] -> [a*b*.., H]`."""
    if x.rank < 2:
        raise ShapeError(f"leading_flatten: rank 2 or more is needed, got {x}")
    return x.with_dims((product(x.dims[:-1]), x.dims[-1]))


def leading_flatten_shape(x: Shape, new_dims: Sequence[int | str | Dim]) -> Shape | None:
    """The flattened shape when reshaping `x` to `new_dims` merely joins the leading axes, else None."""
    if x.rank < 2 or len(new_dims) != 2:
        return None
    flat = leading_flatten_fused_shape(x)
    return flat if reshape_shape(x, new_dims) == flat else None


def conv_spatial_output(
    size: int | Dim, kernel: int, stride: int, padding: int, dilation: int, op: str = "conv"
) -> int | Dim:
    """`(in + 2p - d(k-1) - 1) // s + 1`."""
    span = dilation * (kernel - 1) + 1
    if not require_at_most(span, size + 2 * padding, op):
        raise ShapeError(f"{op}: a window of {span} does not fit into {size} + 2*{padding}")
    return (size + 2 * padding - span) // stride + 1


conv2d_spatial_output = conv_spatial_output


def conv_transpose_spatial_output(
    size: int | Dim, kernel: int, stride: int, padding: int, dilation: int, output_padding: int
) -> int | Dim:
    """`(in-1)s + d(k-1) + outpad - 2p + 1`."""
    return (size - 1) * stride + dilation * (kernel - 1) + output_padding - 2 * padding + 1


conv_transpose2d_spatial_output = conv_transpose_spatial_output


def conv2d_output_shape(
    x: Shape,
    w: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    op: str = "conv2d",
) -> Shape:
    """NCHW x [C_out, C_in/g, kH, kW]; any number of spatial axes."""
    spatial = x.rank - 2
    if spatial < 1 or w.rank != x.rank:
        raise ShapeError(
            f"{op}: x [N,C,spatial..] and w [C_out,C_in/groups,kernel..] need one rank >= 3, got {x} and {w}"
        )
    if not require_equal(x.dims[1], w.dims[1] * groups, op):
        raise ShapeError(f"{op}: x has {x.dims[1]} channels, w expects {w.dims[1]}*{groups}, in {x} and {w}")
    if not require_equal(w.dims[0] % groups, 0, op):
        raise ShapeError(f"{op}: {w.dims[0]} output channels are not a multiple of groups={groups}")
    kernel = w.with_dims(w.dims[2:]).static_dims
    settings = zip(x.dims[2:], kernel, stride, padding, dilation)
    sizes = [conv_spatial_output(*one, op) for one in settings]
    return x.with_dims((x.dims[0], w.dims[0], *sizes))


def conv_transpose2d_output_shape(
    x: Shape,
    w: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    op: str = "conv_transpose2d",
) -> Shape:
    """NCHW x [C_in, C_out/g, kH, kW]; any number of spatial axes."""
    spatial = x.rank - 2
    if spatial < 1 or w.rank != x.rank:
        raise ShapeError(f"{op}: x [N,C,spatial..] and w [C_in,C_out/groups,kernel..] need one rank >= 3, got {x}, {w}")
    if not require_equal(x.dims[1], w.dims[0], op):
        raise ShapeError(f"{op}: x has {x.dims[1]} channels, w expects {w.dims[0]}, in {x} and {w}")
    kernel = w.with_dims(w.dims[2:]).static_dims
    sizes = [
        conv_transpose_spatial_output(x.dims[2 + i], kernel[i], stride[i], padding[i], dilation[i], output_padding[i])
        for i in range(spatial)
    ]
    return x.with_dims((x.dims[0], w.dims[1] * groups, *sizes))
