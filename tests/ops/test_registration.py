"""Registration refuses an op with a hole: every op can be typed, evaluated, decomposed, differentiated and batched."""

import pytest

import rlx.ops  # noqa: F401  (registers matmul)
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape


def define(**changes):
    """Register a class that is complete except for what `changes` sets to None."""

    def infer(self, x: Shape) -> Shape:
        return x

    body = {
        "__doc__": "y = x.",
        "infer": infer,
        "eval": lambda self, x: x,
        "samples": classmethod(lambda cls: iter(())),
        "primitive": True,
        "linear_in": (0,),
        "vjp": lambda self, ct, y, x: (ct,),
        "batch": NoRule("a test"),
    }
    body |= changes
    kept = {k: v for k, v in body.items() if v is not None}
    cls = type("Incomplete", (Op,), kept)
    return op("never_registered")(cls)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"__doc__": None}, "a docstring"),
        ({"infer": None}, "infer"),
        ({"eval": None}, "eval"),
        ({"samples": None}, "samples"),
        ({"primitive": False}, r"decompose \(or primitive = True\)"),
        ({"linear_in": ()}, "jvp"),
        ({"vjp": None}, "vjp"),
        ({"batch": None}, "batch"),
        ({"vjp": None, "batch": None}, "vjp, batch"),
    ],
)
def test_a_hole_is_refused(changes, missing):
    with pytest.raises(TypeError, match=rf"op Incomplete cannot be registered: it lacks {missing}"):
        define(**changes)


def test_two_ops_cannot_share_a_name():
    with pytest.raises(TypeError, match="two ops are called 'matmul'"):
        op("matmul")(_complete())


def _complete():
    class Another(Op):
        """y = x."""

        primitive = True
        linear_in = (0,)

        def infer(self, x: Shape) -> Shape:
            return x

        def eval(self, x):
            return x

        def vjp(self, ct, y, x):
            return (ct,)

        def batch(self, size, operands, batched):
            return operands[0]

        @classmethod
        def samples(cls):
            return iter(())

    return Another
