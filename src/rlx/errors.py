"""Every error a user can meet.

`RlxError` and its children mean "the program or its input is wrong": the message names the op, what was wanted,
what came, and the next step. `InternalError` means "rlx is wrong" and asks for the program that shows it.
"""

from __future__ import annotations


class RlxError(Exception):
    """Base of all errors caused by the user's program or data."""


class DTypeError(RlxError, TypeError):
    """An element type is unknown or not accepted here."""


class ShapeError(RlxError, ValueError):
    """Dimensions do not fit together."""


class OpError(RlxError, ValueError):
    """An op was given operands or attributes it does not accept."""


class OutOfRange(OpError, IndexError):
    """An index outside of its axis that is known before anything runs: read or written, in a program or at once."""


class ParseError(RlxError, ValueError):
    """Program text that cannot be read; the message starts with the line number."""


class FormatError(RlxError, ValueError):
    """A file or JSON document that is not what it claims to be."""


class UnsupportedOnnx(RlxError, NotImplementedError):
    """An ONNX model needs an op, or a way of using one, that rlx does not have; the message names the nodes."""


class VerificationError(RlxError):
    """A graph breaks the rules of the IR."""


class TraceError(RlxError, TypeError):
    """A Python function did something that cannot be recorded in a graph."""


class TreeError(RlxError, ValueError):
    """Nested containers do not have the structure that is needed; the message names the path."""


class AssertionFailed(RlxError, AssertionError):
    """A `runtime_assert` of the program did not hold; the message is the program's own."""


class NanFound(RlxError, FloatingPointError):
    """An op made a NaN of numbers while `debug_nans` was on; the message names it and its line."""


class AutodiffError(RlxError):
    """A program cannot be differentiated or batched: the op that stands in the way, and why."""


class NoVjpRule(AutodiffError):
    """An op on the way of a gradient has none."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op} has no gradient: {reason}")
        self.op, self.reason = op, reason


class NoJvpRule(AutodiffError):
    """An op on the way of a tangent has no derivative."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op} has no derivative: {reason}")
        self.op, self.reason = op, reason


class NoVmapRule(AutodiffError):
    """An op cannot be batched."""

    def __init__(self, op: str, reason: str) -> None:
        super().__init__(f"{op} cannot be batched: {reason}")
        self.op, self.reason = op, reason


class NoGradient(AutodiffError):
    """The loss does not depend on what it is differentiated by."""

    def __init__(self, node: str) -> None:
        super().__init__(
            f"the loss does not depend on {node!r}; leave it out, or use GradWithLossOptions.TRAINING to get zeros"
        )
        self.node = node


class UnregisteredOp(AutodiffError):
    """A custom op, or a function with its own derivative, that is not known in this process."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"{name!r} is not registered here; {hint}")
        self.name = name


class UnboundedWhile(AutodiffError):
    """Reverse mode through a loop whose number of rounds has no bound."""

    def __init__(self) -> None:
        super().__init__(
            "while: the gradient needs a bound on the number of rounds, because the values of every round are kept; "
            "give max_iterations, use scan or fori_loop, or forward mode (jvp), which needs no bound"
        )


class BindingError(RlxError, ValueError):
    """Inputs, parameters or symbolic sizes do not match the program."""


class LowerError(RlxError):
    """An HIR block cannot be lowered: wrong operand count or a missing bias."""


class BackendError(RlxError):
    """A device or backend is unknown, absent, or cannot run an op."""


class OutOfMemory(BackendError, MemoryError):
    """There is no memory for what a run with these sizes needs."""


class ShardingError(RlxError, ValueError):
    """Arrays, meshes or processes do not fit together."""


class TrainingError(RlxError):
    """A training run cannot go on, or cannot save what it has; the last checkpoint stays as it was."""


class UnknownDevice(BackendError, ValueError):
    """No target has this name."""


class NotInstalled(BackendError):
    """A target whose packages or drivers are missing; the message says what to install."""


class NoDevice(BackendError):
    """A target that is installed, on a machine that has no such device."""


class ExportOnly(BackendError):
    """A target that programs are written for but cannot run on from here."""


class InternalError(Exception):
    """A fault of rlx itself. Please report it with the program text it carries."""
