"""Programs with too much of something: refused with a clear error, in little time, before Python's own limits."""

import json

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
import rlx.ops
from rlx.errors import FormatError, OpError, ParseError, RlxError, ShapeError, TraceError
from rlx.ir.dims import MOST_FACTORS, as_dim
from rlx.ir.op import MOST_NESTED, OP_CLASSES
from rlx.ir.serialize import from_json, to_json
from rlx.ir.text.graph_text import parse, parse_value

HUGE = (2**64, -(2**63) - 1, 10**30, 10**5000, -(10**5000))


def program(type_text):
    return f"mir @f(%x: {type_text}) {{\n  return %x\n}}\n"


@pytest.mark.parametrize(
    "size",
    [
        "*".join(["S"] * 20_000),
        "+".join(f"S{i}" for i in range(20_000)),
        "*".join(["(A+B+C+D+E+F)"] * 20),
        "".join(f"max({i}+S, (T+1)*" for i in range(60)) + "S" + ")" * 60,
    ],
    ids=["factors", "terms", "powers", "doubled"],
)
def test_sizes_of_very_many_factors(size):
    with pytest.raises(ParseError, match=f"more than {MOST_FACTORS} factors"):
        parse(program(f"f32[{size}]"))


@pytest.mark.parametrize(
    "size", ["(" * 5000 + "S" + ")" * 5000, "-" * 5000 + "S", "max(1," * 5000 + "S" + ")" * 5000], ids=["(", "-", "max"]
)
def test_sizes_that_nest_deeply(size):
    with pytest.raises(ParseError, match="nests more than 64 deep"):
        parse(program(f"f32[{size}]"))
    with pytest.raises(ParseError, match="nests more than 64 deep"):
        rlx.Graph("f").input("x", (size,))


def test_sizes_of_ordinary_programs_are_far_from_the_limits():
    many = as_dim(" + ".join(f"S{i}" for i in range(300)))
    assert len(many.symbols) == 300 and as_dim(str(many)) == many
    assert str(as_dim("(" * 40 + "S" + ")" * 40)) == "S"


@pytest.mark.parametrize("size", ["9" * 5000, "9" * 20, f"S*{'9' * 5000}", str(2**63)])
def test_sizes_of_very_many_digits(size):
    with pytest.raises(ParseError, match=r"less than 2\*\*63"):
        parse(program(f"f32[{size}]"))


def test_sizes_from_python_are_less_than_two_to_the_63():
    assert rlx.Shape((2**63 - 1,)).dims == (2**63 - 1,)
    for size in (2**63, 10**5000):
        with pytest.raises(ShapeError, match=r"less than 2\*\*63"):
            rlx.Graph("f").input("x", (size,))
    with pytest.raises(ShapeError, match="negative"):
        rlx.Graph("f").input("x", (-(10**5000),))


def test_more_axes_than_an_array_can_have():
    with pytest.raises(ShapeError, match="at most 64 axes, got 65"):
        rlx.Shape((1,) * 65)
    with pytest.raises(ParseError, match="at most 64 axes, got 300"):
        parse(program(f"f32[{','.join([str(2**62)] * 300)}]"))


@pytest.mark.parametrize("read", [2**63 - 1, 10**8])
def test_a_chain_that_reads_a_far_input(read):
    text = f'%0: f32[3] = elementwise_region(%x) {{chain="relu(i{read})"}}'
    with pytest.raises(ParseError, match=f"reads {read + 1} operands, got 1"):
        parse(f"mir @f(%x: f32[3]) {{\n  {text}\n  return %0\n}}\n")


@pytest.mark.parametrize("brackets", ["()", "[]"])
def test_values_that_nest_deeply(brackets):
    nested = brackets[0] * 5000 + brackets[1] * 5000
    with pytest.raises(ParseError, match="nest at most 64 deep"):
        parse(f"mir @f() {{\n  %0: f32[] = constant() {{value={nested}}}\n  return %0\n}}\n")


def test_integers_of_very_many_digits():
    assert parse_value(str(2**64 - 1)) == 2**64 - 1
    with pytest.raises(ParseError, match="at most 64 bits, got one of 5000 digits"):
        parse_value("9" * 5000)


def _replaced(value, new):
    """The attribute value with one of its integers replaced by `new`; none if it holds none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [new]
    if isinstance(value, tuple):
        return [(*value[:i], v, *value[i + 1 :]) for i, item in enumerate(value) for v in _replaced(item, new)]
    return []


def test_attributes_beyond_64_bits():
    """Every integer of every attribute of every sample, replaced by one that no kernel could hold."""
    count = 0
    for name, cls in OP_CLASSES.items():
        if not cls.__module__.startswith("rlx."):
            continue
        for sample in cls.samples():
            for field, value in sample.op.attributes.items():
                for new in HUGE:
                    for changed in _replaced(value, new):
                        count += 1
                        with pytest.raises(RlxError):
                            op = sample.op.replace(**{field: changed})
                            graph = rlx.Graph("f")
                            graph.append_node(op, [graph.input(f"x{i}", s) for i, s in enumerate(sample.shapes("f32"))])
                            pytest.fail(f"{name}.{field} takes {str(changed)[:60]}")
    assert count > 1000


def nested_bodies(depth):
    text = "@b(%a: f32[3]) {\n return %a\n}"
    for _ in range(depth):
        text = f"@b(%a: f32[3]) {{\n %0: f32[3] = checkpoint(%a) {{body={text}}}\n return %0\n}}"
    return f"mir {text}"


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_bodies_nest_as_deep_as_is_allowed(device):
    graph = parse(nested_bodies(MOST_NESTED))
    assert graph.nesting == MOST_NESTED
    x = np.arange(3, dtype="f4")
    [y] = rlx.Session(device).compile(from_json(to_json(graph))).run(a=x)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("depth", [MOST_NESTED + 1, 200, 3000])
def test_bodies_that_nest_too_deep(depth):
    with pytest.raises(ParseError, match="nest at most"):
        parse(nested_bodies(depth))


def test_bodies_that_nest_too_deep_from_python():
    graph = parse(nested_bodies(MOST_NESTED))
    checkpoint = type(graph.nodes[-1].op)
    with pytest.raises(OpError, match=f"programs nest at most {MOST_NESTED} deep"):
        checkpoint(graph)


@pytest.mark.parametrize("depth", [60, 3000])
def test_json_that_nests_deeply(depth):
    inner = to_json(parse(nested_bodies(1)))
    document = json.loads(inner)
    body = json.dumps(document["nodes"][-1]["attrs"]["body"])
    head, tail = json.dumps(document["nodes"][-1]["attrs"]["body"] | {"nodes": ["HERE"]}).split('"HERE"')
    leaf = json.dumps(document["nodes"][0])
    node_head, node_tail = json.dumps(document["nodes"][-1] | {"attrs": {"body": "HERE"}}).split('"HERE"')
    body = f"{head}{leaf}, {node_head}" * depth + body + f"{node_tail}{tail}" * depth
    with pytest.raises(FormatError):
        from_json(inner.replace(json.dumps(document["nodes"][-1]["attrs"]["body"]), body))
    with pytest.raises(FormatError, match="not valid JSON"):
        from_json("[" * 100_000)


@pytest.mark.parametrize("wrap", [rlx.jit, lambda f: rlx.grad(rlx.jit(f))], ids=["jit", "grad of jit"])
def test_functions_that_are_traced_inside_one_another(wrap):
    def f(x):
        return rnp.sum(x * x)

    for _ in range(200):
        f = rlx.jit(f)
    with pytest.raises(TraceError, match="too deeply for Python's stack"):
        wrap(f)(np.ones(3, "f4"))


def test_a_function_that_calls_itself_for_ever():
    @rlx.jit
    def f(x):
        return f(x + 1.0)

    with pytest.raises(TraceError, match="too deeply"):
        f(np.ones(3, "f4"))
    # What was left open on the way is closed: the next trace works.
    assert rlx.jit(lambda x: x + 1.0)(np.float32(1)) == 2.0


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(
    "text", ["psum(%x)", "pmax(%x)", "ppermute(%x)", "axis_index()"], ids=lambda t: t.partition("(")[0]
)
def test_collectives_of_too_many_participants(text, device):
    result = "i32[]" if text == "axis_index()" else "f32[3]"
    for size in (2**31, 2**62):
        line = f'%0: {result} = {text} {{axis_name="i", axis_size={size}}}'
        graph = parse(f"mir @f(%x: f32[3]) {{\n  {line}\n  return %0\n}}\n")
        with pytest.raises(RlxError, match=f"{size} participants; one process imitates at most"):
            rlx.Session(device).compile(graph).run(x=np.ones(3, "f4"))


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_eigenvalues_of_what_is_no_number(device, bad):
    """As LAPACK leaves them: a matrix with a NaN has NaN, its neighbours in the stack have theirs."""
    x = np.stack([np.diag([3.0, 1.0, 2.0])] * 3).astype("f4")
    x[1, 2, 0] = x[1, 0, 2] = bad
    # Not read.
    x[2, 0, 2] = bad
    graph = rlx.Graph("f")
    graph.set_outputs(rlx.ops.Eigh()(graph.input("x", (3, 3, 3))))
    w, v = rlx.Session(device).compile(graph).run(x=x)
    assert np.isnan(w[1]).all() and np.isnan(v[1]).all()
    np.testing.assert_allclose(w[[0, 2]], [[1, 2, 3]] * 2, rtol=1e-6)
    assert np.isfinite(v[[0, 2]]).all()


def test_project_is_for_several_results():
    with pytest.raises(ParseError, match="the operand has one result"):
        parse("mir @f(%x: f32[3]) {\n  %0: f32[3] = project(%x) {index=0}\n  return %0\n}\n")


def test_values_that_fill_more_than_any_memory():
    graph = rlx.Graph("f")
    x = graph.input("x", (1,))
    y = rnp.cumsum(rlx.ops.broadcast_to(x, (2**60,)))
    graph.set_outputs([rnp.sort(y) + rnp.cumsum(rlx.exp(y))])
    with pytest.raises(ShapeError, match=r"no memory has 2\*\*63 bytes"):
        rlx.Session("cpu").compile(graph)
