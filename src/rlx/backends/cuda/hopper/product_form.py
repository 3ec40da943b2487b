"""`ProductForm`: what the ways of products on tensor cores share: the epilogue at the end of their code, and its
arguments among those of the loop kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from rlx.backends.cuda.hopper.epilogue import FinishCall, finish_of
from rlx.backends.cuda.hopper.launching import Load, TensorForm
from rlx.kernels.cpu.matmul.matmul import Product
from rlx.kernels.gpu.pair_finish import finish_kernel
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.machines import Machine


class ProductForm(TensorForm):
    """One product."""

    def __init__(self, product: Product, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(params, machine, load)
        self.product = product
        self._finish = finish_kernel(product)
        self._passed = [self.places[p.name] for p in self._finish.params if p.name in self.places]
        buffers = [p for p in self._finish.params if isinstance(p, Buffer)]
        self._aligned = [(self.places[p.name], p.align) for p in buffers if p.align]

    @property
    def finish(self) -> FinishCall:
        """The epilogue as code."""
        return finish_of(self.product, self._finish, self.machine)

    def passed(self, words: Sequence[int]) -> list[int]:
        """The arguments of the epilogue."""
        return [words[i] for i in self._passed]

    def is_aligned(self, words: Sequence[int]) -> bool:
        """Whether the memory of the epilogue begins where its code expects it."""
        return all(words[place] % align == 0 for place, align in self._aligned)


class HasProduct(Protocol):
    """What a kernel was made of, if a product is part of it."""

    @property
    def product(self) -> Product: ...


Origin = TypeVar("Origin", bound=HasProduct)


class OriginForm(ProductForm, Generic[Origin]):
    """A product whose rows are more than a matrix that lies in memory: its `origin` says what. There is code for some
    widths of tiles."""

    waits = True

    def __init__(self, origin: Origin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(origin.product, params, machine, load)
        self.origin = origin
