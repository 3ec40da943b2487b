"""Trees of Python containers. A tree is a leaf, or a dict, list, tuple, namedtuple, None, OrderedDict, or an instance
of a registered class whose children are trees.

    >>> leaves, structure = tree_flatten({"b": [1, 2], "a": (3, None)})
    >>> leaves, structure
    ([3, 1, 2], TreeDef({'a': (*, None), 'b': [*, *]}))
    >>> tree_unflatten(structure, [0, 0, 7])
    {'a': (0, None), 'b': [0, 7]}

Children of a dict come in the order of its sorted keys, so that equal dicts have equal structures. Walks use explicit
stacks: the depth of a tree is not limited by Python's recursion limit.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from rlx.errors import TreeError

# One step from a container to a child: a dict key, a position or a field name.
Key = Any
Path = tuple[Key, ...]
IsLeaf = Callable[[Any], bool] | None


class _Registration(NamedTuple):
    """How instances of one class are taken apart and put together, and what their children are called."""

    flatten: Callable[[Any], tuple[Sequence[Any], Hashable]]
    unflatten: Callable[[Any, Sequence[Any]], Any]
    keys: Callable[[Any, int], Sequence[Key]]


class _Container(NamedTuple):
    """One inner node of a structure: its class, what it holds beside its children, and their number."""

    kind: type
    aux: Hashable
    arity: int

    @property
    def keys(self) -> Sequence[Key]:
        return _REGISTRY[self.kind].keys(self.aux, self.arity)

    def __str__(self) -> str:
        name = self.kind.__name__
        if self.kind in _DICTS:
            return f"{name} with the keys {list(self.keys)}"
        if self.kind in (list, tuple):
            return f"{name} of {self.arity}"
        return name


class TreeDef:
    """The structure of a tree: its nodes in preorder, with None in the place of every leaf."""

    __slots__ = ("_hash", "nodes", "num_leaves")

    def __init__(self, nodes: Iterable[_Container | None]) -> None:
        self.nodes = tuple(nodes)
        self.num_leaves = self.nodes.count(None)
        self._hash: int | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether the tree is a leaf and nothing around it."""
        return self.nodes == (None,)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure with the given leaves."""
        values = list(leaves)
        if len(values) != self.num_leaves:
            raise TreeError(f"the structure {self} has {self.num_leaves} leaves, got {len(values)}")
        # Preorder read backwards meets every child before its parent, the first child last.
        done: list[Any] = []
        for node in reversed(self.nodes):
            if node is None:
                done.append(values.pop())
            else:
                children = [done.pop() for _ in range(node.arity)]
                done.append(_REGISTRY[node.kind].unflatten(node.aux, children))
        return done[0]

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """What `tree` has in the places of the leaves of this structure; these may be trees themselves."""
        found: list[Any] = []
        pending = [tree]
        for position, node in enumerate(self.nodes):
            item = pending.pop()
            if node is None:
                found.append(item)
                continue
            registration = _registration(item)
            children, aux = registration.flatten(item) if registration is not None else ((), None)
            if registration is None or _Container(type(item), aux, len(children)) != node:
                got = _Container(type(item), aux, len(children)) if registration is not None else None
                raise TreeError(_difference(self._path(position), node, got, item))
            pending.extend(reversed(children))
        return found

    def paths(self) -> list[Path]:
        """The path of every leaf."""
        return [path for path, node in zip(self._node_paths(), self.nodes) if node is None]

    def _node_paths(self) -> list[Path]:
        found: list[Path] = []
        pending: list[Path] = [()]
        for node in self.nodes:
            path = pending.pop()
            found.append(path)
            if node is not None:
                pending.extend((*path, key) for key in reversed(node.keys))
        return found

    def _path(self, position: int) -> Path:
        return self._node_paths()[position]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TreeDef) and self.nodes == other.nodes)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.nodes)
        return self._hash

    def __repr__(self) -> str:
        done: list[str] = []
        for node in reversed(self.nodes):
            done.append("*" if node is None else _text(node, [done.pop() for _ in range(node.arity)]))
        return f"TreeDef({done[0]})"


def _text(node: _Container, children: list[str]) -> str:
    if node.kind is type(None):
        return "None"
    if node.kind is list:
        return f"[{', '.join(children)}]"
    if node.kind is tuple:
        return f"({', '.join(children)}{',' if len(children) == 1 else ''})"
    if node.kind is dict:
        return "{" + ", ".join(f"{k!r}: {c}" for k, c in zip(node.keys, children)) + "}"
    return f"{node.kind.__name__}({', '.join(f'{k}={c}' for k, c in zip(node.keys, children))})"


def path_text(path: Path) -> str:
    """A path as names of inputs and messages write it: `p.layers.0.w`."""
    return ".".join(str(key) for key in path)


def _difference(path: Path, wanted: _Container | None, got: _Container | None, item: Any = None) -> str:
    place = f"at {path_text(path)!r}" if path else "at the top"
    if wanted is not None and got is not None and wanted.kind is got.kind and wanted.kind in _DICTS:
        missing = [k for k in wanted.keys if k not in got.keys]
        extra = [k for k in got.keys if k not in wanted.keys]
        if missing or extra:
            parts = [f"lacks the keys {missing}"] * bool(missing) + [f"has the extra keys {extra}"] * bool(extra)
            return f"the trees differ {place}: the second one {' and '.join(parts)}"
    described = str(got) if got is not None else "a leaf" if item is None else f"a leaf ({type(item).__name__})"
    return f"the trees differ {place}: {wanted or 'a leaf'} is wanted, got {described}"


def tree_difference(wanted: TreeDef, got: TreeDef) -> str | None:
    """Where and how two structures differ, or None when they are equal."""
    for position, (a, b) in enumerate(zip(wanted.nodes, got.nodes)):
        if a != b:
            return _difference(wanted._path(position), a, b)
    return None


_REGISTRY: dict[type, _Registration] = {}


def _registration(item: Any) -> _Registration | None:
    kind = type(item)
    found = _REGISTRY.get(kind)
    if found is None and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        found = _Registration(lambda x: (x, None), lambda _, xs: kind(*xs), lambda _, n: kind._fields)
        _REGISTRY[kind] = found
    return found


def _sorted_keys(tree: dict[Any, Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(tree))
    except TypeError:
        raise TreeError(f"the keys of a dict in a tree must be sortable, got {list(tree)}") from None


def _flatten_dict(tree: dict[Any, Any]) -> tuple[list[Any], tuple[Any, ...]]:
    keys = _sorted_keys(tree)
    return [tree[k] for k in keys], keys


def _flatten_defaultdict(tree: defaultdict[Any, Any]) -> tuple[list[Any], tuple[Any, ...]]:
    keys = _sorted_keys(tree)
    return [tree[k] for k in keys], (tree.default_factory, keys)


def _positions(_: Any, count: int) -> range:
    return range(count)


_DICTS = (dict, OrderedDict, defaultdict)
_REGISTRY[type(None)] = _Registration(lambda x: ((), None), lambda _, xs: None, _positions)
_REGISTRY[list] = _Registration(lambda x: (x, None), lambda _, xs: list(xs), _positions)
_REGISTRY[tuple] = _Registration(lambda x: (x, None), lambda _, xs: tuple(xs), _positions)
_REGISTRY[dict] = _Registration(_flatten_dict, lambda keys, xs: dict(zip(keys, xs)), lambda keys, _: keys)
_REGISTRY[OrderedDict] = _Registration(
    lambda x: (list(x.values()), tuple(x)), lambda keys, xs: OrderedDict(zip(keys, xs)), lambda keys, _: keys
)
_REGISTRY[defaultdict] = _Registration(
    _flatten_defaultdict, lambda aux, xs: defaultdict(aux[0], zip(aux[1], xs)), lambda aux, _: aux[1]
)


def _register(kind: type, registration: _Registration) -> None:
    if kind in _REGISTRY:
        raise TreeError(f"{kind.__name__} is already known as a tree node")
    _REGISTRY[kind] = registration


_C = TypeVar("_C", bound=type)


def register_pytree_node(
    kind: _C,
    flatten: Callable[[Any], tuple[Iterable[Any], Hashable]],
    unflatten: Callable[[Any, Sequence[Any]], Any],
) -> _C:
    """Make instances of `kind` inner nodes: `flatten(x) -> (children, aux)`, `unflatten(aux, children) -> x`.

    `aux` is part of the structure, so it needs `==` and a hash.
    """

    def flatten_to_list(x: Any) -> tuple[list[Any], Hashable]:
        children, aux = flatten(x)
        return list(children), aux

    _register(kind, _Registration(flatten_to_list, unflatten, _positions))
    return kind


def register_pytree_node_class(kind: _C) -> _C:
    """Class decorator: `kind` gives `tree_flatten(self)` and the class method `tree_unflatten(aux, children)`."""
    return register_pytree_node(kind, lambda x: x.tree_flatten(), kind.tree_unflatten)  # type: ignore[attr-defined]


def static(**options: Any) -> Any:
    """A field of a dataclass that is part of the structure, not a child: `dataclasses.field` marked for
    `register_dataclass`."""
    import dataclasses

    return dataclasses.field(**options | {"metadata": {**(options.get("metadata") or {}), "static": True}})


def register_static(kind: _C) -> _C:
    """Make objects of a class, which need == and a hash, part of the structure, without children; also a decorator."""
    _register(kind, _Registration(lambda x: ([], x), lambda x, _: x, _positions))
    return kind


def register_dataclass(
    kind: _C, data_fields: Sequence[str] | None = None, meta_fields: Sequence[str] | None = None
) -> _C:
    """Make a dataclass an inner node; usable as a decorator. Fields are children, except `meta_fields`, which are
    part of the structure; where neither is given, those whose metadata has `static=True` are."""
    import dataclasses

    fields = [f for f in dataclasses.fields(kind) if f.init]
    names = [f.name for f in fields]
    if data_fields is None and meta_fields is None:
        meta_fields = [f.name for f in fields if f.metadata.get("static")]
    meta = tuple(meta_fields or ())
    data = tuple(n for n in names if n not in meta) if data_fields is None else tuple(data_fields)
    if sorted((*data, *meta)) != sorted(names):
        raise TreeError(f"{kind.__name__} has the fields {names}, but data and meta fields are {[*data, *meta]}")

    def flatten(x: Any) -> tuple[list[Any], Hashable]:
        return [getattr(x, n) for n in data], tuple(getattr(x, n) for n in meta)

    def unflatten(aux: Any, children: Sequence[Any]) -> Any:
        return kind(**dict(zip(data, children)), **dict(zip(meta, aux)))

    _register(kind, _Registration(flatten, unflatten, lambda _, n: data))
    return kind


def are_leaves(items: Iterable[Any]) -> bool:
    """Whether none of the items is a container."""
    return all([_registration(item) is None for item in items])  # noqa: C419 (half the time of a generator)


def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeDef]:
    """The leaves from left to right, and the structure; `is_leaf` stops the walk where it returns True."""
    leaves: list[Any] = []
    nodes: list[_Container | None] = []
    pending = [tree]
    while pending:
        item = pending.pop()
        registration = _registration(item)
        if registration is None or (is_leaf is not None and is_leaf(item)):
            leaves.append(item)
            nodes.append(None)
            continue
        children, aux = registration.flatten(item)
        nodes.append(_Container(type(item), aux, len(children)))
        pending.extend(reversed(children))
    return leaves, TreeDef(nodes)


def tree_unflatten(structure: TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree with this structure and these leaves."""
    return structure.unflatten(leaves)


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves from left to right."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> TreeDef:
    """The structure without the leaves."""
    return tree_flatten(tree, is_leaf)[1]


def broadcast_prefix(prefix: Any, tree: Any, is_entry: Callable[[Any], bool]) -> list[Any]:
    """One entry of `prefix` per leaf of `tree`: an entry stands for everything below its place."""
    entries, structure = tree_flatten(prefix, is_entry)
    return [entry for entry, part in zip(entries, structure.flatten_up_to(tree)) for _ in tree_leaves(part)]


def tree_map(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """`f` applied to every leaf, and to what each tree of `rest` has in its place.

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": (2,)}, {"x": 10, "y": (20,)})
    {'x': 11, 'y': (22,)}
    """
    leaves, structure = tree_flatten(tree, is_leaf)
    columns = [leaves, *(structure.flatten_up_to(r) for r in rest)]
    return structure.unflatten(f(*row) for row in zip(*columns))


def tree_flatten_with_path(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[tuple[Path, Any]], TreeDef]:
    """Pairs of (path, leaf), and the structure."""
    leaves, structure = tree_flatten(tree, is_leaf)
    return list(zip(structure.paths(), leaves)), structure


def tree_leaves_with_path(tree: Any, is_leaf: IsLeaf = None) -> list[tuple[Path, Any]]:
    """Pairs of (path, leaf)."""
    return tree_flatten_with_path(tree, is_leaf)[0]


def tree_map_with_path(f: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """`tree_map` whose function gets the path of the leaf first."""
    pairs, structure = tree_flatten_with_path(tree, is_leaf)
    columns = [structure.flatten_up_to(r) for r in rest]
    return structure.unflatten(f(path, leaf, *row) for (path, leaf), *row in zip(pairs, *columns))


_MISSING = object()


def tree_reduce(f: Callable[[Any, Any], Any], tree: Any, initial: Any = _MISSING, is_leaf: IsLeaf = None) -> Any:
    """The leaves joined by `f` from left to right."""
    from functools import reduce

    leaves = tree_leaves(tree, is_leaf)
    return reduce(f, leaves) if initial is _MISSING else reduce(f, leaves, initial)


def tree_reduce_associative(
    f: Callable[[Any, Any], Any], tree: Any, *, identity: Any = _MISSING, is_leaf: IsLeaf = None
) -> Any:
    """Leaves combined two by two, then the results, and so on: f must be associative, and is nested only log2 deep."""
    leaves = tree_leaves(tree, is_leaf)
    if not leaves:
        if identity is _MISSING:
            raise TreeError("tree_reduce_associative: a tree without leaves needs identity=")
        return identity
    while len(leaves) > 1:
        rest = leaves[len(leaves) - len(leaves) % 2 :]
        leaves = [f(a, b) for a, b in zip(leaves[::2], leaves[1::2])] + rest
    return leaves[0]


def tree_broadcast(prefix: Any, tree: Any, is_leaf: IsLeaf = None) -> Any:
    """A tree of the structure of `tree` that has the leaves of `prefix`, a tree of its upper levels."""
    whole = tree_structure(tree, is_leaf)
    upper, leaves = tree_structure(prefix, is_leaf), tree_leaves(prefix, is_leaf)
    below = upper.flatten_up_to(tree)
    return whole.unflatten([x for x, part in zip(leaves, below) for _ in tree_leaves(part, is_leaf)])


def tree_all(tree: Any, is_leaf: IsLeaf = None) -> bool:
    """True when every leaf is true."""
    return all(tree_leaves(tree, is_leaf))


def tree_transpose(outer: TreeDef, inner: TreeDef, tree: Any) -> Any:
    """A tree of structure `outer` over `inner`, turned into one of structure `inner` over `outer`."""
    rows = [inner.flatten_up_to(subtree) for subtree in outer.flatten_up_to(tree)]
    return inner.unflatten(outer.unflatten(column) for column in zip(*rows))
