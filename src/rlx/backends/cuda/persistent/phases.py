"""The phases of a decode step, and the vectors that they read and write: what `Plan` shares out over blocks."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from rlx.backends.cuda.hopper.stored_codes import StoredFormat
from rlx.backends.cuda.hopper.stream_rows import UNIT
from rlx.backends.cuda.persistent.panel_rows import stored_format
from rlx.backends.cuda.persistent.step import Norm
from rlx.quant.panels import PANEL_ROWS
from rlx.quant.schemes import QuantScheme

Finish = Literal["post", "add", "gated", "act", "logits"]


class Vector(NamedTuple):
    """Words [batch, length] from `at` on; with `pairs` a word has two elements."""

    at: int
    length: int
    pairs: bool = False

    @property
    def words(self) -> int:
        return self.length // 2 if self.pairs else self.length


class Product(NamedTuple):
    """Rows of matrices, a unit at a time, times the vector `reads`. `schemes` are those that its matrices have in some
    layer, if they are panels. What becomes of the sums, `finish`:

    post    they are words of `writes`            gated  activation(first matrix) · second matrix is written, in pairs
    add     x grows by them, and is written       act    activation(sums) is written, in pairs
    logits  they are the result
    """

    name: str
    reads: str
    writes: str
    matrices: tuple[str, ...]
    counts: tuple[int, ...]
    depth: int
    finish: Finish
    owner: str  # phases of one owner have the same units
    norm: Norm | None = None
    norm_name: str = ""
    biases: tuple[str, ...] = ()
    next_version: int = 0
    schemes: tuple[QuantScheme, ...] = ()

    @property
    def parts(self) -> int:
        """Matrices that are multiplied together; otherwise they follow each other."""
        return 2 if self.finish == "gated" else 1

    @property
    def unit(self) -> int:
        """Rows that are multiplied together: those of one `mma`, or of a panel."""
        return PANEL_ROWS if self.schemes else UNIT

    @property
    def units(self) -> int:
        counts = self.counts[:1] if self.finish == "gated" else self.counts
        return sum(-(-count // self.unit) for count in counts)

    @property
    def formats(self) -> tuple[StoredFormat, ...]:
        return tuple(stored_format(scheme) for scheme in self.schemes)


class Attend(NamedTuple):
    """Attention of one head of k and one sequence, whose keys are shared by `splits` blocks: chunk i of keys belongs to
    block i modulo splits. Those join what they have found through `part`, each a share of the elements."""

    name: str = "attend"
    reads: str = "qkv"
    parts: str = "part"
    writes: str = "att"


class Settle(NamedTuple):
    """x + norm(what a half of a layer has given): those who have elements of x read all of `reads` for the factor of
    the norm, and write theirs."""

    name: str
    reads: str
    writes: str
    depth: int
    norm: Norm
    norm_name: str
    next_version: int = 0


Phase: TypeAlias = Product | Attend | Settle
