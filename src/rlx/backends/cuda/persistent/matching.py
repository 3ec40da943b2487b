"""`decode_step`: the program of a decoder as a `Step`, or `Unfit` with what it has that a step does not have.

The program is read backwards from its logits, node by node: nothing is taken for granted that is not in the graph. It
is one graph for all sizes; what is found here holds where every sequence has one new token, whose logits are asked for.
Values that are rounded between kernels stay wider in the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from rlx.backends.cuda.persistent.step import Activation, Layer, Norm, Rope, Rows, Step, Unfit
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant, Input, Param
from rlx.ops.attn.operands import MaskKind
from rlx.quant.schemes import QuantScheme

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_approx": "gelu_tanh", "relu": "relu", "sigmoid": "sigmoid"}
_ELEMENTS = {DType.BF16: "bf16", DType.F16: "f16"}
# Ops that leave the elements of one token where they are.
_VIEWS = ("cast", "reshape")
_HEADS_AND_TOKENS = (0, 2, 1, 3)

T = TypeVar("T")


def decode_step(graph: Graph) -> Step:
    """The step that the outputs of a program are: logits, then caches that are stored over inputs."""
    return _Matcher(graph).step()


class _Matcher:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.element: DType | None = None
        self.inputs: dict[str, str] = {}
        self.activations: set[Activation] = set()
        self.attention: tuple[Any, ...] | None = None
        self.stored: list[Node] = []
        self.table_widths: dict[str, int] = {}

    # Single nodes.

    def node(self, number: int) -> Node:
        return self.graph.nodes[number]

    def operands(self, node: Node) -> list[Node]:
        return [self.node(i) for i in node.inputs]

    def plain(self, node: Node) -> Node:
        """Behind casts, reshapes, and exchanges of the axes of heads and of the only token."""
        while True:
            name = node.op.mnemonic
            turned = name == "transpose" and tuple(node.op.attributes["perm"]) == _HEADS_AND_TOKENS
            if name not in _VIEWS and not turned:
                return node
            node = self.node(node.inputs[0])

    def is_op(self, node: Node, *names: str) -> bool:
        return node.op.mnemonic in names

    def leaf(self, node: Node, kind: type[Input] | type[Param]) -> str:
        node = self.plain(node)
        if not isinstance(node.op, Input | Param) or not isinstance(node.op, kind):
            raise Unfit(f"{self.said(node)} where {kind.__name__.lower()}s are read")
        return str(node.op.key)

    def said(self, node: Node) -> str:
        return f"{node.op.mnemonic} ({node.id})"

    def number(self, node: Node) -> float | None:
        node = self.plain(node)
        if not isinstance(node.op, Constant) or node.shape.rank:
            return None
        return float(np.asarray(node.op.eval()).reshape(()))

    def is_zero(self, node: Node) -> bool:
        node = self.plain(node)
        return isinstance(node.op, Constant) and not np.asarray(node.op.eval()).astype("f4").any()

    def either(self, node: Node, test: Callable[[Node, Node], T | None]) -> T | None:
        """What a test finds for the operands of a node, in one order or the other."""
        a, b = self.operands(node)
        found = test(a, b)
        return test(b, a) if found is None else found

    def same_input(self, role: str, node: Node) -> None:
        """Every use of a role names the same input."""
        name = self.leaf(node, Input)
        if self.inputs.setdefault(role, name) != name:
            raise Unfit(f"{role} in {name!r} and in {self.inputs[role]!r}")

    def weight(self, node: Node) -> str:
        """A param in the type of the step."""
        name, dtype = self.leaf(node, Param), self.plain(node).shape.dtype
        if dtype not in _ELEMENTS:
            raise Unfit(f"the weight {name!r} is {dtype}; bf16 and f16 are multiplied")
        if self.element is None:
            self.element = dtype
        if self.element is not dtype:
            raise Unfit(f"the weight {name!r} is {dtype}, others are {self.element}")
        return name

    # Parts of a layer.

    def linear(self, node: Node) -> tuple[Node, Rows]:
        """x @ rows of a weight + bias: x, and the rows."""
        node, first, count = self.plain(node), 0, None
        bias, bias_first = "", 0
        while not self.is_op(node, "matmul", "panel_matmul"):
            if self.is_op(node, "narrow") and int(node.op.attributes["axis"]) in (-1, node.shape.rank - 1):
                first += int(node.op.attributes["start"])
                if bias:
                    raise Unfit("a bias of a part of a product")
                count = int(node.op.attributes["len"]) if count is None else count
                node = self.plain(self.node(node.inputs[0]))
            elif self.is_op(node, "add") and not bias:
                found = self.either(node, lambda a, b: (a, b) if isinstance(self.plain(b).op, Param) else None)
                if found is None:
                    raise Unfit(f"{self.said(node)} behind a product")
                bias, bias_first = self.weight(found[1]), first
                node = self.plain(found[0])
            else:
                raise Unfit(f"{self.said(node)} where a product with a weight is read")
        x, weight = self.operands(node)
        if node.shape.dtype not in _ELEMENTS:
            raise Unfit(f"its products are {node.shape.dtype}; load the model with activations='bf16' or 'f16'")
        if self.is_op(node, "panel_matmul"):
            rows, depth = int(node.op.attributes["n"]), int(x.shape.dims[-1])
            name, scheme = self.leaf(weight, Param), node.op.attributes["scheme"]
            return x, Rows(name, first, rows if count is None else count, depth, bias, bias_first, scheme)
        if not self.is_op(weight, "transpose") or tuple(weight.op.attributes["perm"]) != (1, 0):
            raise Unfit(f"{self.said(weight)}: weights that are not [rows, depth]")
        name = self.weight(self.node(weight.inputs[0]))
        depth, rows = (int(d) for d in weight.shape.static_dims)
        return x, Rows(name, first, rows if count is None else count, depth, bias, bias_first)

    def norm(self, node: Node) -> tuple[Node, Norm | None]:
        """What a norm reads, and the norm; the node itself if it is none."""
        given, node, shift = node, self.plain(node), ""
        if self.is_op(node, "add"):
            found = self.either(node, lambda a, b: (a, b) if self.plain(b).shape.rank == 1 else None)
            if found is None:
                return given, None
            node = self.plain(found[0])
            shift = "" if self.is_zero(found[1]) else self.weight(found[1])
        if not self.is_op(node, "mul"):
            return given, None
        scaled = self.either(node, lambda a, b: (a, b) if isinstance(self.plain(b).op, Param) else None)
        if scaled is None or not self.is_op(self.plain(scaled[0]), "mul"):
            return given, None
        gain = self.weight(scaled[1])
        rooted = self.either(self.plain(scaled[0]), lambda a, b: (a, b) if self.is_op(self.plain(b), "rsqrt") else None)
        if rooted is None:
            return given, None
        centered, root = self.plain(rooted[0]), self.plain(rooted[1])
        eps = self.mean_of_squares(self.plain(self.node(root.inputs[0])), centered)
        if not self.is_op(centered, "sub"):
            return rooted[0], Norm(gain, eps, True, shift)
        x, mean = self.operands(centered)
        self.require_mean(self.plain(mean), self.plain(x))
        return x, Norm(gain, eps, False, shift)

    def mean_of_squares(self, node: Node, of: Node) -> float:
        """eps of mean(of²) + eps."""
        if self.is_op(node, "add"):
            found = self.either(node, lambda a, b: None if self.number(b) is None else (a, self.number(b)))
            if found is not None and found[1] is not None:
                total = self.require_mean(self.plain(found[0]), None)
                if self.is_op(total, "mul") and all(self.plain(i).id == of.id for i in self.operands(total)):
                    return found[1]
        raise Unfit(f"{self.said(node)} under the root of a norm")

    def require_mean(self, node: Node, of: Node | None) -> Node:
        """What a mean over the last axis is taken of."""
        total, count = (self.plain(n) for n in self.operands(node)) if self.is_op(node, "div") else (node, node)
        if not self.is_op(total, "reduce_sum") or self.number(count) is None:
            raise Unfit(f"{self.said(node)} where the mean of a norm is read")
        summed = self.node(total.inputs[0])
        axes = tuple(total.op.attributes["axes"])
        if axes not in ((-1,), (summed.shape.rank - 1,)) or self.number(count) != summed.shape.dims[-1]:
            raise Unfit(f"{self.said(total)}: a norm over other than the last axis")
        if of is not None and self.plain(summed).id != of.id:
            raise Unfit(f"{self.said(node)}: the mean of another value")
        return self.plain(summed)

    def rope(self, node: Node) -> tuple[Node, Rope | None]:
        """What is turned by positions, and the tables: halves of heads or of their first elements, or neighbours."""
        node = self.plain(node)
        if not self.is_op(node, "concat"):
            return node, None
        if node.op.attributes["axis"] not in (-1, node.shape.rank - 1):
            raise Unfit(f"{self.said(node)} where positions turn heads")
        low, high, *rest = (self.plain(part) for part in self.operands(node))
        if self.is_op(low, "concat") and not rest:
            # What does not turn stands behind what does.
            (low, high), rest = (self.plain(part) for part in self.operands(low)[:2]), [high]
        if not self.is_op(low, "sub") or not self.is_op(high, "add") or len(rest) > 1:
            raise Unfit(f"{self.said(node)} where positions turn heads")
        factors = [[self.factors(part) for part in self.operands(side)] for side in (low, high)]
        (a, cos), (b, sin) = factors[0]
        if {(x.id, t) for x, t in factors[1]} != {(b.id, cos), (a.id, sin)}:
            raise Unfit(f"{self.said(node)}: heads that turn in another way")
        if not self.is_op(a, "narrow"):
            raise Unfit(f"{self.said(a)}: positions that turn other parts of heads")
        source = self.node(a.inputs[0])
        whole, pairs = self.plain(source), self.table_widths[cos]
        heads = self.node(source.inputs[0]).shape.dims if self.is_op(source, "reshape") else ()
        if source.shape.dims[-2:] == (pairs, 2) and heads[-1:] == (2 * pairs,) and not rest:
            # Neighbours: [.., pairs, 2] cut along the last axis.
            self.require_cuts([(a, 0, 1), (b, 1, 1)], whole)
            return whole, Rope(cos, sin, pairs, is_split=False)
        rests = [(r, 2 * pairs, int(source.shape.dims[-1]) - 2 * pairs) for r in rest]
        self.require_cuts([(a, 0, pairs), (b, pairs, pairs), *rests], whole)
        return whole, Rope(cos, sin, pairs)

    def require_cuts(self, cuts: Sequence[tuple[Node, int, int]], whole: Node) -> None:
        """Parts of a value along its last axis: where each begins, and how long it is."""
        for part, start, length in cuts:
            at = part.op.attributes if self.is_op(part, "narrow") else {}
            is_last = at.get("axis") in (-1, part.shape.rank - 1)
            if not is_last or at["start"] != start or at["len"] != length:
                raise Unfit(f"{self.said(part)}: positions that turn other parts of heads")
            if self.plain(self.node(part.inputs[0])) is not whole:
                raise Unfit(f"{self.said(part)}: positions that turn parts of different values")

    def factors(self, node: Node) -> tuple[Node, str]:
        """Half a head, and the table that it is multiplied by."""
        node = self.plain(node)
        found = (
            self.either(node, lambda a, b: (a, b) if self.is_op(self.plain(b), "gather") else None)
            if self.is_op(node, "mul")
            else None
        )
        if found is None:
            raise Unfit(f"{self.said(node)} where positions turn heads")
        table, places = self.operands(self.plain(found[1]))
        self.same_input("positions", places)
        if self.plain(table).shape.dtype is not DType.F32:
            raise Unfit("tables of positions that are not f32")
        name = self.leaf(table, Input)
        self.table_widths[name] = int(table.shape.dims[-1])
        return self.plain(found[0]), name

    def cached(self, node: Node) -> tuple[str, Node]:
        """A cache, and what is appended to it."""
        node = self.plain(node)
        if not self.is_op(node, "scatter_nd"):
            raise Unfit(f"{self.said(node)} where a cache is read")
        cache, places, new = self.operands(node)
        at = node.op.attributes
        if tuple(at["axes"]) != (2,) or at["batch_dims"] != 1 or str(at["mode"]) != "drop":
            raise Unfit(f"{self.said(node)}: a cache that is written in another way")
        self.same_input("positions", places)
        self.stored.append(node)
        if self.plain(cache).shape.dtype is not self.element:
            raise Unfit(f"a cache of {self.plain(cache).shape.dtype} beside weights of {self.element}")
        return self.leaf(cache, Input), new

    def attended(self, node: Node) -> Node:
        """The attention behind what joins its parts."""
        node = self.plain(node)
        for name in ("attention_join", "project"):
            if self.is_op(node, name):
                node = self.plain(self.node(node.inputs[0]))
        if not self.is_op(node, "attention_parts", "attention"):
            raise Unfit(f"{self.said(node)} where attention is read")
        return node

    def head_of(self, node: Node) -> tuple[Node, Rows, Norm | None, Rope | None]:
        """Heads of q or k: what their product reads, its rows, their norm and their positions."""
        turned, rope = self.rope(node)
        x, norm = self.norm(turned)
        if norm is not None and (norm.shift or not norm.is_rms):
            raise Unfit("norms of heads with a mean or a shift")
        x, rows = self.linear(x)
        return x, rows, norm, rope

    # Layers.

    def sum_of(self, node: Node, read: Callable[[Node], T]) -> tuple[Node, T, Norm | None]:
        """x + something that can be read, or its norm: x, what was read, and the norm."""
        node = self.plain(node)
        if not self.is_op(node, "add"):
            raise Unfit(f"{self.said(node)} where a half of a layer is added")
        reasons = []
        for x, y in (self.operands(node), self.operands(node)[::-1]):
            try:
                inner, norm = self.norm(y)
                self.linear(inner)
            except Unfit as reason:
                reasons.append(str(reason))
                continue
            return self.plain(x), read(inner), norm
        raise Unfit("; ".join(dict.fromkeys(reasons)))

    def feed_forward(self, node: Node) -> tuple[Node, dict[str, Any]]:
        """What the second half of a layer reads, before its norm."""
        inner, down = self.linear(node)
        inner = self.plain(inner)
        parts: dict[str, Any] = {"down": down}
        if self.is_op(inner, "mul"):
            found = self.either(inner, lambda a, b: (a, b) if self.plain(a).op.mnemonic in _ACTIVATIONS else None)
            if found is None:
                raise Unfit(f"{self.said(inner)} where a gate is read")
            activation, up = self.plain(found[0]), found[1]
            x, parts["up"] = self.linear(up)
            gate_x, parts["gate"] = self.linear(self.node(activation.inputs[0]))
            if gate_x.id != x.id:
                raise Unfit("a gate that reads another value")
        else:
            activation = inner
            if inner.op.mnemonic not in _ACTIVATIONS:
                raise Unfit(f"{self.said(inner)} where an activation is read")
            x, parts["up"] = self.linear(self.node(inner.inputs[0]))
        self.activations.add(_ACTIVATIONS[activation.op.mnemonic])
        x, parts["ffn_norm"] = self.norm(x)
        return self.plain(x), parts

    def attention_half(self, node: Node) -> tuple[Node, dict[str, Any]]:
        joined, out = self.linear(node)
        attention = self.attended(joined)
        q, k, v, *extras = self.operands(attention)
        at = attention.op.attributes
        if not at["has_kv_len"] or not at["has_positions"] or at["has_scales"] or len(extras) != 2:
            raise Unfit("attention with masks, biases or scales")
        if at["mask_kind"] not in (MaskKind.Causal, MaskKind.SlidingWindow):
            raise Unfit(f"attention that sees keys by {at['mask_kind']}")
        self.same_input("lengths", extras[0])
        self.same_input("positions", extras[1])
        kv_heads = at["num_heads"] if at["num_kv_heads"] is None else at["num_kv_heads"]
        common = (at["num_heads"], kv_heads, at["head_dim"], at["score_scale"], at["softcap"])
        if self.attention is None:
            self.attention = common
        if self.attention != common:
            raise Unfit("layers whose attention differs")
        x, q_rows, q_norm, rope = self.head_of(q)
        keys, new_k = self.cached(k)
        values, new_v = self.cached(v)
        k_x, k_rows, k_norm, k_rope = self.head_of(new_k)
        v_x, v_rows = self.linear(new_v)
        if k_x.id != x.id or v_x.id != x.id or rope != k_rope:
            raise Unfit("q, k and v of different values or positions")
        x, norm = self.norm(x)
        window = at["window"] if at["mask_kind"] is MaskKind.SlidingWindow else None
        parts = {"attention_norm": norm, "q": q_rows, "k": k_rows, "v": v_rows, "keys": keys, "values": values}
        return self.plain(x), parts | {
            "out": out, "q_norm": q_norm, "k_norm": k_norm, "rope": rope, "window": window
        }  # fmt: skip

    def layer(self, node: Node) -> tuple[Node, Layer]:
        """The value in front of a layer, and the layer that ends at a node."""
        middle, (read, second), post_ffn = self.sum_of(node, self.feed_forward)
        if read.id != middle.id:
            raise Unfit("a feed-forward half that does not read the value it is added to")
        before, (read, first), post_attention = self.sum_of(middle, self.attention_half)
        if read.id != before.id:
            raise Unfit("attention that does not read the value it is added to")
        return before, Layer(**first, **second, post_attention_norm=post_attention, post_ffn_norm=post_ffn)

    # The whole.

    def embedding(self, node: Node) -> tuple[str, float, QuantScheme | None] | None:
        """The table that a value was gathered from, its factor, and how it is stored."""
        factor = 1.0
        if self.is_op(node, "mul"):
            found = self.either(node, lambda a, b: None if self.number(b) is None else (a, self.number(b)))
            if found is None or found[1] is None:
                return None
            node, factor = self.plain(found[0]), found[1]
        is_stored = self.is_op(node, "panel_gather")
        if not is_stored and (not self.is_op(node, "gather") or int(node.op.attributes["axis"])):
            return None
        table, tokens = self.operands(node)
        self.same_input("tokens", tokens)
        if is_stored:
            return self.leaf(table, Param), factor, node.op.attributes["scheme"]
        return self.weight(table), factor, None

    def step(self) -> Step:
        outputs = [self.node(i) for i in self.graph.outputs]
        if not outputs or outputs[0].shape.rank != 3 or outputs[0].shape.dtype is not DType.F32:
            raise Unfit("its first output is not f32 [sequences, rows, words]")
        node, scale, softcap = self.scaled_logits(self.plain(outputs[0]))
        x, head = self.linear(node)
        x, final_norm = self.norm(x)
        x = self.plain(x)
        if not self.is_op(x, "gather_nd"):
            raise Unfit(f"{self.said(x)} where rows are asked for")
        x, rows = self.operands(x)
        self.same_input("rows", rows)
        x, layers = self.plain(x), list[Layer]()
        while (found := self.embedding(x)) is None:
            x, layer = self.layer(x)
            layers.append(layer)
        if not layers or self.attention is None:
            raise Unfit("it has no layers")
        if {node.id for node in outputs[1:]} != {node.id for node in self.stored}:
            raise Unfit("its outputs are not logits and caches")
        if len(self.activations) != 1:
            raise Unfit("layers whose activations differ")
        heads, kv_heads, head_dim, score_scale, attention_softcap = self.attention
        element = _ELEMENTS[self.element] if self.element is not None else ""
        tokens, positions, lengths = (self.inputs[role] for role in ("tokens", "positions", "lengths"))
        return Step(
            element, tokens, positions, lengths, found[0], head.depth, heads, kv_heads, head_dim,
            tuple(layers[::-1]), final_norm, head, head_dim**-0.5 if score_scale is None else score_scale,
            attention_softcap, next(iter(self.activations)), found[1], found[2], scale, softcap,
        )  # fmt: skip

    def scaled_logits(self, node: Node) -> tuple[Node, float, float | None]:
        """The product behind a factor and a softcap, and both."""
        softcap, found = None, self.factor_of(node)
        if found is not None and self.is_op(self.plain(found[0]), "tanh"):
            inner = self.plain(self.node(self.plain(found[0]).inputs[0]))
            below, cap = self.operands(inner) if self.is_op(inner, "div") else (inner, inner)
            if self.number(cap) != found[1]:
                raise Unfit(f"{self.said(inner)} under the tanh of logits")
            softcap, node = found[1], self.plain(below)
            found = self.factor_of(node)
        return (node, 1.0, softcap) if found is None else (self.plain(found[0]), found[1], softcap)

    def factor_of(self, node: Node) -> tuple[Node, float] | None:
        if not self.is_op(node, "mul"):
            return None
        found = self.either(node, lambda a, b: None if self.number(b) is None else (a, self.number(b)))
        return None if found is None or found[1] is None else (found[0], found[1])
