"""`Op`: what every operation is. An op is an immutable value whose annotated fields are its attributes.

A class gives the meaning in one place: `infer` (result types), `eval` (plain NumPy, the living definition), `decompose`
(the same value from more primitive ops) and `samples` (operands that feed the generated tests). Registering it under
its mnemonic makes it printable, parsable and buildable; registration refuses a class with a hole.

`Op` behaves like a frozen dataclass, but without generating code for each class: there are some two hundred of them,
and `import rlx` must stay fast.
"""

from __future__ import annotations

import enum
import importlib
import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rlx.errors import OpError
from rlx.ir.dims import Dim, as_dim, as_offset
from rlx.ir.dtype import DType
from rlx.ir.shape import Dims, Shape
from rlx.ir.tensor_data import TensorData

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

AttributeValue = (
    "None | bool | int | float | str | bytes | DType | Dim | Shape | TensorData | Graph | tuple[AttributeValue, ...]"
)

_Converter = Callable[[Any], Any]

# How deep bodies lie in bodies: passes go down one body at a time, and Python's stack has an end.
MOST_NESTED = 32


def _to_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a bool is needed")
    return value


def _to_int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("an int is needed")
    number = operator.index(value)
    # Signed or not: seeds are unsigned.
    if not -(2**63) <= number < 2**64:
        raise ValueError("it needs more than 64 bits")
    return number


def _to_float(value: Any) -> float:
    if isinstance(value, str | bool):
        raise TypeError("a float is needed")
    return float(value)


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string is needed")
    return str(value)


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("bytes are needed")
    return bytes(value)


def _to_graph(value: Any) -> Any:
    if not hasattr(value, "freeze"):
        raise TypeError("a Graph is needed")
    body = value.freeze()
    if body.nesting >= MOST_NESTED:
        raise ValueError(f"programs nest at most {MOST_NESTED} deep")
    return body


def _to_data(value: Any) -> TensorData:
    return value if isinstance(value, TensorData) else TensorData(value)


# How each attribute type is checked and normalised; keyed by the annotation as written on the op class.
_CONVERTERS: dict[str, _Converter] = {
    "bool": _to_bool,
    "int": _to_int,
    "float": _to_float,
    "str": _to_str,
    "bytes": _to_bytes,
    "DType": DType.of,
    "Shape": Shape.of,
    "Size": as_dim,
    "Offset": as_offset,
    "TensorData": _to_data,
    "Graph": _to_graph,
}
# Attribute types that may hold symbols, and so change when a graph is bound.
_BINDABLE = ("Size", "Dims", "Offset", "Shape", "Graph")

_T = TypeVar("_T", bound=type)


def attribute_type(cls: _T) -> _T:
    """Allow `cls` as the type of op attributes. It is written as a string: `str(v)` out, `cls.of(s)` or `cls(s)` in."""
    read: _Converter = getattr(cls, "of", cls)

    def convert(value: Any) -> Any:
        if not isinstance(value, str | cls):
            raise TypeError(f"a {cls.__name__} or its name is needed")
        return read(value)

    _CONVERTERS[cls.__name__] = convert
    return cls


def _converter_for(annotation: str) -> _Converter:
    text = annotation.replace(" ", "")
    if text == "Dims":
        text = "tuple[Size,...]"
    if text.endswith("|None"):
        inner = _converter_for(text.removesuffix("|None"))
        return lambda value: None if value is None else inner(value)
    if text.startswith("tuple[") and text.endswith(",...]"):
        item = _converter_for(text[len("tuple[") : -len(",...]")])
        return lambda values: tuple(item(v) for v in _sequence(values))
    if text in _CONVERTERS:
        return _CONVERTERS[text]
    raise TypeError(f"{annotation!r} is not an attribute type; see rlx.ir.op.attribute_type")


def _sequence(values: Any) -> Any:
    if isinstance(values, str | bytes):
        raise TypeError("a tuple is needed")
    return values


class NoRule:
    """States that an op has no such rule, and why; the reason is the error the user sees."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"NoRule({self.reason!r})"


def no_ids(op: Op, *operands: Shape) -> dict[int, Dims]:
    return {}


class Op:
    """One operation with its attributes. Calling it with tensors (or arrays) adds it to a graph (or evaluates it)."""

    name: ClassVar[str] = ""
    # A primitive has a kernel on every engine and no decomposition.
    primitive: ClassVar[bool] = False
    # An effect is ordered with other effects, never dropped and never merged.
    effect: ClassVar[bool] = False
    # HIR blocks are lowered by the fusion policy of their module, not by `decompose`.
    is_block: ClassVar[bool] = False
    # Leaves and projections: transforms know what they are and need no rules for them.
    is_structural: ClassVar[bool] = False
    # Only the compiler makes it. Its kernel trusts what types cannot say (a route, a layout), so no file may hold it.
    lowered: ClassVar[bool] = False
    # Several ops in one that named fusion forms for targets which claim it; our own kernels join its parts themselves.
    is_fused: ClassVar[bool] = False
    # Elementwise or transform steps that were joined, as text in its attributes.
    is_region: ClassVar[bool] = False
    # It moves, repeats or converts elements, or makes positions: nothing that a program is written for.
    only_moves: ClassVar[bool] = False
    # Its result has every element of its operand, and no other.
    keeps_elements: ClassVar[bool] = False
    # What it is to a precision policy, by the name of a `PrecisionClass`.
    precision_class: ClassVar[str] = "compute"
    # Most of the time of a program goes into ops like this one: what stands before the first and behind the last can be
    # overlapped with other programs.
    is_heavy: ClassVar[bool] = False
    # An element of the result depends on nothing but the elements of the operands at its place.
    is_elementwise: ClassVar[bool] = False
    # A product of matrices, a convolution or a solve, at whose edges fused kernels end.
    is_blas: ClassVar[bool] = False
    # It joins the elements of an axis.
    is_reduction: ClassVar[bool] = False
    # It chooses from what the heavy part of a program has computed.
    picks: ClassVar[bool] = False
    # No region of elementwise steps goes through it; `is_blas` says so too.
    is_fusion_boundary: ClassVar[bool] = False
    # It only looks at flags and raises an error, which may come when everything else is done.
    is_late_check: ClassVar[bool] = False
    # A branch or a loop that also has a form as straight code, for targets that run neither.
    has_straight_form: ClassVar[bool] = False
    # It is differentiated in the form that it decomposes into, as fused ops are.
    opens_for_autodiff: ClassVar[bool] = False

    infer: ClassVar[Callable[..., Shape | tuple[Shape, ...]]]
    eval: ClassVar[Callable[..., Any]]
    decompose: ClassVar[Callable[..., Any] | None] = None
    samples: ClassVar[Callable[[], Any]]
    # Operands with ids that must be valid: position -> sizes of the axes they select from, given the operands' types.
    # One size for all ids, or one per coordinate when the last axis of the ids holds coordinates.
    index_operands: ClassVar[Callable[..., dict[int, Dims]]] = no_ids

    # How the op transforms. A rule that is missing is derived from `decompose`; NoRule says that there is none and why.
    # jvp(primals, tangents, y) -> tangent of y; tangents are None where they are zero.
    jvp: ClassVar[Callable[..., Any] | NoRule | None] = None
    # vjp(ct, y, *operands) -> one cotangent per operand, None where zero; ct and y are tuples for several results.
    vjp: ClassVar[Callable[..., Any] | NoRule | None] = None
    # batch(size, operands, batched) -> y, where batched operands and all of y have the batch axis in front.
    batch: ClassVar[Callable[..., Any] | NoRule | None] = None
    # Operands in which the op is jointly linear, or linear one at a time: this gives the jvp.
    linear_in: ClassVar[tuple[int, ...] | str] = ()
    multilinear_in: ClassVar[tuple[int, ...]] = ()
    # Integer operands and results stand for numbers: between two such ops they have tangents, of type f32.
    codes_have_tangents: ClassVar[bool] = False

    @property
    def derivative_is_zero(self) -> bool:
        """Whether no derivative passes through, of whatever operand and wherever."""
        return False

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}
    _convert: ClassVar[dict[str, _Converter]] = {}
    _bindable: ClassVar[tuple[str, ...]] = ()
    _sizes: ClassVar[tuple[str, ...]] = ()
    _arity: ClassVar[tuple[int, int | None]]
    _family_field: ClassVar[str] = ""
    _prefix: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if not all(isinstance(v, str) for v in cls.__annotations__.values()):
            raise TypeError(f"the module of op {cls.__name__} needs `from __future__ import annotations` at its top")
        own = {k: v for k, v in cls.__annotations__.items() if not v.startswith("ClassVar")}
        cls.is_fusion_boundary = cls.is_fusion_boundary or cls.is_blas
        cls._fields = (*(f for f in cls._fields if f not in own), *own)
        cls._defaults = {f: getattr(cls, f) for f in cls._fields if hasattr(cls, f)}
        cls._convert = cls._convert | {f: _converter_for(a) for f, a in own.items()}
        bindable = [f for f, a in own.items() if any(word in a for word in _BINDABLE)]
        cls._bindable = (*cls._bindable, *bindable)
        cls._sizes = (*cls._sizes, *(f for f in bindable if "Size" in own[f] or "Dims" in own[f]))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        if len(args) > len(cls._fields):
            raise OpError(f"{cls.__name__} takes {len(cls._fields)} attributes {cls._fields}, got {len(args)}")
        values = dict(zip(cls._fields, args))
        for key, value in kwargs.items():
            if key not in cls._convert or key in values:
                raise OpError(f"{cls.__name__} has no attribute {key!r}, or it is given twice; it has {cls._fields}")
            values[key] = value
        for field in cls._fields:
            if field in values:
                try:
                    value = cls._convert[field](values[field])
                except (TypeError, ValueError, OverflowError) as error:
                    shown = _shown(values[field])
                    raise OpError(f"{cls.__name__}: {field}={shown} is not valid: {error}") from None
            elif field in cls._defaults:
                value = cls._defaults[field]
            else:
                raise OpError(f"{cls.__name__} needs the attribute {field!r}")
            self.__dict__[field] = value
        self.check()

    def check(self) -> None:
        """Refuse attribute values that make no sense for any operand; override where there are some."""

    def fail(self, message: str) -> OpError:
        """The error for `message`, with the op's name in front: `raise self.fail(...)`."""
        return OpError(f"{self.mnemonic}: {message}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; use replace({name}=...)")

    @property
    def mnemonic(self) -> str:
        """The name in program text; ops of a family are named after their kind."""
        cls = type(self)
        return cls._prefix + getattr(self, cls._family_field) if cls._family_field else cls.name

    @property
    def is_primitive(self) -> bool:
        """True when there is nothing to decompose into; families decide by kind."""
        return type(self).primitive

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes by name."""
        return {f: self.__dict__[f] for f in self._fields}

    @property
    def shown_attributes(self) -> dict[str, Any]:
        """The attributes that text and files carry: without the family's kind and without default values."""
        cls = type(self)
        return {
            f: v
            for f in cls._fields
            if f != cls._family_field
            and not (
                (v := self.__dict__[f]) is cls._defaults.get(f, _MISSING) or _same(v, cls._defaults.get(f, _MISSING))
            )
        }

    def replace(self, **changes: Any) -> Op:
        return type(self)(**{**self.attributes, **changes})

    def bind(self, binding: Mapping[str, int | Dim]) -> Op:
        """The op with symbols in its attributes (and bodies) replaced."""
        changes = {}
        for field in self._bindable:
            old = self.__dict__[field]
            new = _bind_value(old, binding)
            if new is not old:
                changes[field] = new
        return self.replace(**changes) if changes else self

    @property
    def size_attributes(self) -> Iterator[int | Dim]:
        """The sizes among the attributes, which are never negative."""
        for field in self._sizes:
            value = self.__dict__[field]
            if isinstance(value, tuple):
                yield from value
            elif value is not None:
                yield value

    def dynamic_symbols(self) -> set[str]:
        """The symbols in the attributes and bodies."""
        found: set[str] = set()
        for field in self._bindable:
            value = self.__dict__[field]
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Dim):
                    found.update(item.symbols)
                elif isinstance(item, Shape) or hasattr(item, "nodes"):
                    found.update(item.dynamic_symbols())
        return found

    @property
    def bodies(self) -> dict[str, Graph]:
        """Nested programs by attribute name; `branches[1]` for items of a tuple."""
        found: dict[str, Graph] = {}
        for field in self._bindable:
            value = self.__dict__[field]
            items = value if isinstance(value, tuple) else (value,)
            for i, item in enumerate(items):
                if hasattr(item, "nodes"):
                    found[f"{field}[{i}]" if isinstance(value, tuple) else field] = item
        return found

    @classmethod
    def arity(cls) -> tuple[int, int | None]:
        """Fewest and most operands; the most is None for variadic ops."""
        found = cls.__dict__.get("_arity")
        if found is None:
            code = cls.infer.__code__
            most = code.co_argcount - 1
            fewest = most - len(cls.infer.__defaults__ or ())
            found = (fewest, None if code.co_flags & 0x04 else most)
            cls._arity = found
        return found

    def num_inputs(self) -> int:
        """The operand count, or 0 when it varies."""
        fewest, most = self.arity()
        return fewest if fewest == most else 0

    def _key(self) -> tuple[Any, ...]:
        key = self.__dict__.get("_cached_key")
        if key is None:
            key = (type(self), *(_hashable(self.__dict__[f]) for f in self._fields))
            self.__dict__["_cached_key"] = key
        return key

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        shown = ", ".join(f"{f}={self.__dict__[f]!r}" for f in self._fields)
        return f"{type(self).__name__}({shown})"

    def __call__(self, *operands: Any) -> Any:
        from rlx.ir.tensor import emit

        return emit(self, operands)


def _shown(value: Any) -> str:
    """A value in a message: short, and without the digits of an int that Python refuses to write."""
    try:
        text = repr(value)
    except ValueError:
        return f"a {type(value).__name__} of very many digits"
    return text if len(text) <= 200 else f"{text[:197]}..."


_MISSING = object()


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(_hashable(a) == _hashable(b))


def _hashable(value: Any) -> Any:
    """A key that tells 1 from 1.0 and 0.0 from -0.0, and finds NaN equal to itself."""
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, tuple):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, bool):
        return ("bool", value)
    return value


def _bind_value(value: Any, binding: Mapping[str, int | Dim]) -> Any:
    if isinstance(value, tuple):
        new = tuple(_bind_value(v, binding) for v in value)
        return value if all(a is b for a, b in zip(new, value)) else new
    if isinstance(value, Dim | Shape) or hasattr(value, "nodes"):
        return value.bind(binding)
    return value


_V = TypeVar("_V")
# Modules with ops that few programs hold; see `register_later`.
_later: list[str] = []


class Registry(MutableMapping[str, _V]):
    """What ops have registered. Who asks for what is not there, or for all, gets the ops of `register_later` too."""

    def __init__(self) -> None:
        self.loaded: dict[str, _V] = {}

    def __getitem__(self, name: str) -> _V:
        while name not in self.loaded and _later:
            _load_next()
        return self.loaded[name]

    def __setitem__(self, name: str, value: _V) -> None:
        self.loaded[name] = value

    def __delitem__(self, name: str) -> None:
        del self.loaded[name]

    def __iter__(self) -> Iterator[str]:
        load_all_ops()
        return iter(self.loaded)

    def __len__(self) -> int:
        load_all_ops()
        return len(self.loaded)


# Mnemonic -> constructor from attributes. The text parser, JSON reader and builders find ops here.
REGISTRY: Registry[Callable[..., Op]] = Registry()
# Op classes by class name, in order of definition.
OP_CLASSES: Registry[type[Op]] = Registry()

_C = TypeVar("_C", bound=type[Op])


def register_later(*modules: str) -> None:
    """Let modules register their ops when one is asked for that is not known: a process starts without loading them."""
    _later.extend(modules)


def load_all_ops() -> None:
    """Import what `register_later` has named; the registry is complete behind it."""
    while _later:
        _load_next()


def _load_next() -> None:
    module = _later[0]
    importlib.import_module(module)
    # Not before it is there: another thread that finds the list empty relies on it.
    if module in _later:
        _later.remove(module)


def _refuse_holes(cls: type[Op]) -> None:
    missing = [m for m in ("infer", "eval", "samples") if not hasattr(cls, m)]
    if not (cls.__doc__ or "").strip():
        missing.append("a docstring")
    if not cls.primitive and cls.decompose is None and not cls.is_block:
        missing.append("decompose (or primitive = True)")
    if cls.decompose is None and not cls.is_block and not cls.is_structural:
        # Nothing to derive a rule from: each is written, or stated to be absent by NoRule.
        linear = bool(cls.linear_in or cls.multilinear_in)
        missing += [r for r in ("jvp", "vjp", "batch") if getattr(cls, r) is None and not (r == "jvp" and linear)]
    if missing:
        raise TypeError(f"op {cls.__name__} cannot be registered: it lacks {', '.join(missing)}")


def _register(mnemonic: str, cls: type[Op], make: Callable[..., Op]) -> None:
    if not cls.__module__.startswith("rlx."):
        load_all_ops()
    if mnemonic in REGISTRY.loaded:
        raise TypeError(f"two ops are called {mnemonic!r}")
    REGISTRY[mnemonic] = make
    OP_CLASSES[cls.__name__] = cls


def op(name: str) -> Callable[[_C], _C]:
    """Register an op class under `name`."""

    def register(cls: _C) -> _C:
        cls.name = name
        _refuse_holes(cls)
        _register(name, cls, cls)
        return cls

    return register


def op_family(kinds: type[enum.StrEnum], prefix: str = "", field: str = "kind") -> Callable[[_C], _C]:
    """Register an op class once per kind; its mnemonics are `prefix + kind`."""

    def register(cls: _C) -> _C:
        cls._family_field, cls._prefix = field, prefix
        cls.name = cls.__name__
        _refuse_holes(cls)
        for kind in kinds:
            _register(prefix + kind.value, cls, partial(cls, **{field: kind}))
        return cls

    return register


def refuse_lowered(op: Op) -> None:
    """An error for an op that comes from outside though only the compiler makes it."""
    if op.lowered:
        raise op.fail(
            "only the compiler makes this op, and its kernel trusts the compiler; programs from outside cannot hold "
            "it. Write the op that it is made from, or read what this compiler wrote with allow_lowered=True"
        )


def kind_of(op: Op) -> str:
    """The parameter-free discriminant of an op: the name of its class."""
    return type(op).__name__


class _OpKinds:
    """The kinds of ops there are, by name: `OpKind.MatMul == "MatMul"`. Grows with the registry."""

    def __getattr__(self, name: str) -> str:
        if name not in OP_CLASSES:
            raise AttributeError(f"there is no op kind {name!r}")
        return name

    def __iter__(self) -> Iterator[str]:
        return iter(OP_CLASSES)

    def __contains__(self, name: object) -> bool:
        return name in OP_CLASSES

    def __len__(self) -> int:
        return len(OP_CLASSES)


OpKind = _OpKinds()
