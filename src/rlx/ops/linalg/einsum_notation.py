"""`einsum`: sums of products written as labels, carried out as diagonals, sums, products and `dot_general`.

Operands are joined two at a time, each time the pair whose product grows the total size the least, of equal
ones the pair with the fewest products.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

from rlx.errors import ShapeError
from rlx.ir.dims import Dim, product, require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.shape import Size
from rlx.ops.define.operands import convert, dims_of, promote_operands
from rlx.ops.linalg.contraction import dot_general
from rlx.ops.pointwise.arithmetic import mul
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.shape.movement import expand_dims, squeeze, transposed
from rlx.ops.shape.rearrange import diagonal

__all__ = ["einsum"]

# What a symbolic size is taken for when the order of products is chosen.
_TYPICAL_SIZE = 64


class _Term(NamedTuple):
    """A tensor and the label of each of its axes. Axes of an ellipsis are labelled "0", "1", .. from the right."""

    value: Any
    labels: tuple[str, ...]

    def size_of(self, label: str) -> Size:
        return dims_of(self.value)[self.labels.index(label)]


def einsum(
    spec: str | Any,
    *operands: Any,
    precision: str = "default",
    out_dtype: DTypeLike | None = None,
) -> Any:
    """The sum of products that `spec` describes, as np.einsum: "ij,jk->ik", "...ii->...i", "bhqd,bhkd" and so on.

    The other form of NumPy, operand, labels, operand, labels, .., [labels], is understood too. Sizes of 1 broadcast.
    """
    if not isinstance(spec, str):
        spec, operands = _written((spec, *operands))
    inputs, result = _parse(spec, operands)
    terms = [_Term(x, labels) for x, labels in zip(promote_operands(*operands), inputs)]
    terms = _aligned([_without_repeats(t) for t in terms], spec)
    options = {"precision": precision, "out_dtype": out_dtype}
    if out_dtype is not None and len(terms) == 1:
        terms = [_Term(convert(terms[0].value, DType.of(out_dtype)), terms[0].labels)]
    while len(terms) > 1:
        terms = _reduced(terms, result)
        i, j = _cheapest_pair(terms, result)
        rest = [t for k, t in enumerate(terms) if k not in (i, j)]
        kept = set(result).union(*(t.labels for t in rest))
        terms = [*rest, _multiplied(terms[i], terms[j], kept, options)]
    (term,) = _reduced(terms, result)
    return transposed(term.value, [term.labels.index(label) for label in result])


def _written(arguments: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The text form of the operand-and-labels form."""

    def text(labels: Sequence[Any]) -> str:
        # Letters in the order of their numbers, so that the implicit result is sorted alike.
        return "".join("..." if n is ... else _LETTERS[n] for n in labels)

    pairs = len(arguments) // 2
    spec = ",".join(text(labels) for labels in arguments[1 : 2 * pairs : 2])
    if len(arguments) % 2:
        spec += "->" + text(arguments[-1])
    return spec, arguments[0 : 2 * pairs : 2]


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _parse(spec: str, operands: Sequence[Any]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Labels of each operand and of the result."""
    left, arrow, right = spec.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(operands):
        raise ShapeError(f"einsum: {spec!r} describes {len(parts)} operands, got {len(operands)}")
    inputs = [_labels(part, len(dims_of(x)), spec) for part, x in zip(parts, operands)]
    used = [label for labels in inputs for label in labels]
    hidden = sorted({label for label in used if label.isdigit()}, key=int, reverse=True)
    if arrow:
        result = _labels(right, len(right.replace("...", "")) + len(hidden) if "..." in right else len(right), spec)
        unknown = sorted(set(result) - set(used))
        if unknown or len(set(result)) != len(result):
            raise ShapeError(f"einsum: the result of {spec!r} must name labels of the operands, each once")
    else:
        once = sorted(label for label in set(used) if used.count(label) == 1 and not label.isdigit())
        result = (*hidden, *once)
    return inputs, result


def _labels(part: str, rank: int, spec: str) -> tuple[str, ...]:
    before, dots, after = part.partition("...")
    if not (before + after).isalpha() and before + after:
        raise ShapeError(f"einsum: {part!r} in {spec!r} is not made of letters and at most one ellipsis (...)")
    hidden = rank - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise ShapeError(f"einsum: {part!r} in {spec!r} names {len(before + after)} axes, but the operand has {rank}")
    return (*before, *(str(i) for i in reversed(range(hidden))), *after)


def _without_repeats(term: _Term) -> _Term:
    """Axes of one operand with the same label become their diagonal."""
    value, labels = term
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            sizes = dims_of(value)[first], dims_of(value)[second]
            if not require_equal(*sizes, "einsum"):
                raise ShapeError(f"einsum: label {label!r} occurs twice in one operand, with sizes {sizes}")
            value = diagonal(value, 0, first, second)
            labels = (*(name for i, name in enumerate(labels) if i not in (first, second)), label)
    return _Term(value, labels)


def _aligned(terms: list[_Term], spec: str) -> list[_Term]:
    """Axes of size 1 are dropped where another operand has more under the same label."""
    sizes: dict[str, Size] = {}
    for term in terms:
        for label in term.labels:
            size, known = term.size_of(label), sizes.get(label, 1)
            if isinstance(size, int) and isinstance(known, int) and size != known and 1 not in (size, known):
                raise ShapeError(
                    f"einsum: label {label!r} of {spec!r} has size {known} in one operand, {size} in another"
                )
            sizes[label] = size if known == 1 else known
    aligned = []
    for value, labels in terms:
        dropped = [i for i, label in enumerate(labels) if dims_of(value)[i] == 1 and sizes[label] != 1]
        kept = tuple(label for i, label in enumerate(labels) if i not in dropped)
        aligned.append(_Term(squeeze(value, dropped) if dropped else value, kept))
    return aligned


def _reduced(terms: list[_Term], result: tuple[str, ...]) -> list[_Term]:
    """Labels that occur in one operand only, and not in the result, are summed."""
    reduced = []
    for k, (value, labels) in enumerate(terms):
        others = set(result).union(*(t.labels for i, t in enumerate(terms) if i != k))
        summed = [i for i, label in enumerate(labels) if label not in others]
        kept = tuple(label for label in labels if label in others)
        reduced.append(_Term(reduce_sum(value, summed) if summed else value, kept))
    return reduced


def _cheapest_pair(terms: list[_Term], result: tuple[str, ...]) -> tuple[int, int]:
    def growth(pair: tuple[int, int]) -> tuple[float, float]:
        a, b = terms[pair[0]], terms[pair[1]]
        kept = set(result).union(*(t.labels for k, t in enumerate(terms) if k not in pair))
        sizes = {label: _estimate(t.size_of(label)) for t in (a, b) for label in t.labels}
        joined = _volume(sizes, [label for label in sizes if label in kept])
        return joined - _volume(sizes, a.labels) - _volume(sizes, b.labels), _volume(sizes, list(sizes))

    return min(combinations(range(len(terms)), 2), key=growth)


def _estimate(size: Size) -> int:
    bound = size.bind(dict.fromkeys(size.symbols, _TYPICAL_SIZE)) if isinstance(size, Dim) else size
    return bound if isinstance(bound, int) else _TYPICAL_SIZE


def _volume(sizes: dict[str, int], labels: Sequence[str]) -> float:
    volume = product(sizes[label] for label in labels)
    assert isinstance(volume, int)
    return float(volume)


def _multiplied(a: _Term, b: _Term, kept: set[str], options: dict[str, Any]) -> _Term:
    """The product of two operands, summed over labels that nothing else needs."""
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in kept]
    summed = [label for label in shared if label not in kept]
    only_a = [label for label in a.labels if label not in shared]
    only_b = [label for label in b.labels if label not in shared]
    labels = (*batch, *only_a, *only_b)
    if not summed:
        return _Term(_outer(a, b, labels, options["out_dtype"]), labels)
    axes = [[t.labels.index(label) for label in group] for group in (summed, batch) for t in (a, b)]
    return _Term(dot_general(a.value, b.value, *axes, **options), labels)


def _outer(a: _Term, b: _Term, labels: tuple[str, ...], out_dtype: DTypeLike | None) -> Any:
    """The elementwise product of two operands laid out along `labels`."""
    laid = []
    for value, have in (a, b):
        ordered = transposed(value, [have.index(label) for label in labels if label in have])
        missing = [i for i, label in enumerate(labels) if label not in have]
        spread = expand_dims(ordered, missing) if missing else ordered
        laid.append(spread if out_dtype is None else convert(spread, DType.of(out_dtype)))
    return mul(*laid)
