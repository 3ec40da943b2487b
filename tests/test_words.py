"""Words that users write: wrong ones are errors that list the right ones, other spellings mean what they say."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.errors import BackendError, DTypeError, RlxError
from rlx.ir.words import Words


@pytest.fixture
def graph():
    return rlx.Graph("words")


def operands(graph):
    return graph.input("x", (4, 4)), graph.input("y", (4, 4))


WRONG = {
    "binary": lambda g, x, y: g.binary("nope", x, y),
    "compare": lambda g, x, y: g.compare("nope", x, y),
    "reduce": lambda g, x, y: g.reduce(x, "nope", [0]),
    "activation": lambda g, x, y: g.activation("nope", x),
    "pool": lambda g, x, y: g.pool(g.input("i", (1, 1, 4, 4)), "nope", (2, 2), (2, 2)),
    "mask kind": lambda g, x, y: g.attention_kind(*[g.input(n, (1, 4, 8)) for n in "qkv"], 2, 4, "nope"),
    "fft norm": lambda g, x, y: g.fft_norm(x, False, "nope"),
    "ste": lambda g, x, y: rlx.ops.fake_quantize(x, 8, ste="nope"),
    "index mode": lambda g, x, y: x.at[0].set(1.0, mode="nope"),
    "fusion policy": lambda g, x, y: rlx.FusionPolicy("nope"),
    "fusion target": lambda g, x, y: rlx.FusionTarget("nope"),
    "target": lambda g, x, y: rlx.supported_for_target("nope"),
    "device": lambda g, x, y: rlx.Device("nope"),
    "session": lambda g, x, y: rlx.Session("nope"),
    "precision": lambda g, x, y: rlx.Session("cpu", precision="nope"),
    "policy": lambda g, x, y: rlx.Session("cpu", policy="nope"),
    "rope style": lambda g, x, y: rlx.ops.RopeStyle("nope"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_word_is_an_error_with_the_right_ones(graph, what):
    with pytest.raises(RlxError, match=r"(?s)'nope'.*(use one of|known devices)"):
        WRONG[what](graph, *operands(graph))


def test_every_enum_of_ops_teaches_its_words():
    kinds = {
        kind
        for kind in (getattr(rlx.ops, n) for n in dir(rlx.ops))
        if isinstance(kind, type) and issubclass(kind, Words)
    }
    assert len(kinds) > 10
    for kind in kinds:
        with pytest.raises(RlxError, match=f"no {kind.__name__}.*{next(iter(kind)).value}"):
            kind("no such word")
        assert all(kind(member.value) is member for member in kind)
        assert set(kind.other_spellings().values()) <= set(kind)


def test_near_misses(graph):
    x, _ = operands(graph)
    with pytest.raises(RlxError, match="did you mean 'gelu'"):
        graph.activation("gellu", x)
    with pytest.raises(DTypeError, match="did you mean 'float32'"):
        rlx.DType.of("float23")


@pytest.mark.parametrize(
    ("word", "name"),
    [("+", "add"), ("-", "sub"), ("*", "mul"), ("/", "div"), ("**", "pow"), ("%", "rem"), ("//", "floordiv")],
)
def test_operators_as_words(graph, word, name):
    assert graph.binary(word, *operands(graph)).node.op.mnemonic == name


@pytest.mark.parametrize(
    ("word", "name"), [("==", "eq"), ("!=", "ne"), ("<", "lt"), ("<=", "le"), (">", "gt"), (">=", "ge")]
)
def test_comparisons_as_words(graph, word, name):
    assert graph.compare(word, *operands(graph)).node.op.mnemonic == name


def test_masks_as_words(graph):
    qkv = [graph.input(n, (1, 4, 8)) for n in "qkv"]
    op = graph.attention_kind(*qkv, 2, 4, "sliding:3").node.op
    assert (op.mask_kind, op.window) == ("sliding_window", 3)
    assert rlx.parse(str(_with_outputs(graph))) == graph
    for wrong in ("sliding:x", "sliding:-1", "causal:3", "sliding:"):
        with pytest.raises(RlxError, match="sliding:8"):
            graph.attention_kind(*qkv, 2, 4, wrong)


def _with_outputs(graph):
    graph.set_outputs([graph.nodes[-1].id])
    return graph


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        *(("float16", "f16"), ("half", "f16"), ("fp16", "f16"), ("float", "f32"), ("single", "f32"), ("double", "f64")),
        *(("int", "i32"), ("bfloat16", "bf16"), ("complex", "c64"), ("fp32", "f32")),
    ],
)
def test_dtypes_of_other_libraries(word, dtype):
    assert rlx.DType.of(word) is rlx.DType.of(dtype)


@pytest.mark.parametrize(
    ("word", "name"), [("half", "f16"), ("float16", "f16"), ("bfloat16", "bf16"), ("float", "f32")]
)
def test_precisions_of_other_libraries(word, name):
    session = rlx.Session("cpu", precision=word)
    assert session.precision == name and session.policy == rlx.Session("cpu", precision=name).policy
    assert session.options.key() == rlx.Session("cpu", precision=name).options.key()


def test_a_precision_in_the_place_of_options():
    with pytest.raises(BackendError, match=r"Session\('cpu', precision='f16'\)"):
        rlx.Session("cpu", "f16")


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_the_reference_applies_precisions(precision):
    """What no 16-bit type holds is lost by the reference too, so that reduced precision has an oracle."""
    g = rlx.Graph("sum")
    x = g.input("x", (4, 8))
    g.set_outputs([rlx.relu(x @ g.param("w", (8, 3))) + 1.0])
    rng = np.random.default_rng(0)
    given, weights = {"x": rng.standard_normal((4, 8)).astype("f4")}, rng.standard_normal((8, 3)).astype("f4")
    found = {}
    for device in ("reference", "cpu"):
        for chosen in ("f32", precision):
            c = rlx.Session(device, precision=chosen).compile(g)
            c.set_param("w", weights)
            found[device, chosen] = np.asarray(c.run(given)[0])
    assert not np.array_equal(found["reference", precision], found["reference", "f32"])
    step = {"f16": 2**-10, "bf16": 2**-7}[precision]
    np.testing.assert_allclose(found["cpu", precision], found["reference", precision], rtol=step)
    np.testing.assert_allclose(found["reference", precision], found["reference", "f32"], rtol=16 * step, atol=16 * step)


def test_sizes_by_their_symbols():
    g = rlx.Graph("sizes")
    x = g.input("x", (rlx.sym.BATCH, 4))
    g.set_outputs([x + x])
    assert g.bind({rlx.sym.BATCH: 3}) == g.bind({"B": 3}) and "f32[3,4]" in str(g.bind({rlx.sym.BATCH: 3}))
    binding = rlx.DimBinding({rlx.sym.BATCH: 3})
    assert binding.get(rlx.sym.BATCH) == binding[rlx.sym.BATCH] == binding["B"] == 3 and rlx.sym.BATCH in binding
    assert binding == rlx.DimBinding({"B": 3}) == {"B": 3}
    assert rlx.Shape(("B", 4)).bind({rlx.sym.BATCH: 3}).dims == (3, 4)
    options = rlx.CompileOptions(dim_binding={rlx.sym.BATCH: 3})
    assert options.key() == rlx.CompileOptions().with_dim_binding({"B": 3}).key()
    assert rlx.Session("cpu", options).compile(g).run(x=np.ones((3, 4), "f4"))[0].shape == (3, 4)
