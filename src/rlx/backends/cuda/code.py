"""Kernels as code for GPUs: loop IR -> PTX here and now, -> machine code where a GPU of the kind is."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from functools import cache, cached_property
from weakref import WeakKeyDictionary, WeakValueDictionary

from rlx.backends.cuda.alignment import needed_alignments, without_alignment
from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.batched_product import BatchedForm, batched_refusal
from rlx.backends.cuda.hopper.code_form import CodeRowsForm, codes_refusal
from rlx.backends.cuda.hopper.expanded_form import ExpandedForm, expanded_refusal
from rlx.backends.cuda.hopper.few_form import FewRowsForm, few_rows_refusal
from rlx.backends.cuda.hopper.form import BATCHES, HopperForm, product_refusal
from rlx.backends.cuda.hopper.gradient_form import GradientForm, gradient_form_refusal
from rlx.backends.cuda.hopper.launching import TensorForm
from rlx.backends.cuda.hopper.mma_attention_form import attention_ways
from rlx.backends.cuda.hopper.mma_form import MmaForm, mma_refusal
from rlx.backends.cuda.hopper.mma_gradient_form import MmaGradientForm
from rlx.backends.cuda.hopper.pixel_form import PixelForm, pixel_refusal
from rlx.backends.cuda.hopper.routed_form import RoutedForm, routed_refusal
from rlx.backends.cuda.hopper.window_form import WindowForm, window_refusal
from rlx.backends.cuda.modules import Function, Module, assemble
from rlx.backends.native.kernels import cache_key
from rlx.backends.native.object_cache import DiskCache
from rlx.backends.program.program import Loading
from rlx.errors import BackendError
from rlx.kernels.gpu.attention import AttentionOrigin, AttentionRefusal, GradientOrigin
from rlx.kernels.gpu.iteration_threads import iterations_as_threads
from rlx.kernels.gpu.matmul import USUAL, ProductOrigin, RoutedOrigin
from rlx.kernels.gpu.matmul_codes import CodesOrigin
from rlx.kernels.gpu.windows import GradientSums, WindowOrigin
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine, machine_named

_numbers = itertools.count(1)


class GpuCode:
    """The PTX of a kernel, made when it is first needed. `address` is a number that no other code of this process has;
    `threads` is what a block of its launches must have; `aligned` are arguments, by number, that must be multiples of a
    number of bytes. Where they are not, `anywhere` gives the code to launch."""

    def __init__(
        self,
        name: str,
        key: str,
        make_ptx: Callable[[], str],
        threads: int,
        aligned: tuple[tuple[int, int], ...] = (),
        anywhere: Callable[[], GpuCode] | None = None,
    ) -> None:
        self.name, self.key, self._make_ptx, self.threads = name, key, make_ptx, threads
        # Other ways to do the same on the tensor cores, in the order in which they are asked; and why there is none.
        self.forms: tuple[TensorForm, ...] = ()
        self.refusal = ""
        self.aligned, self._make_anywhere = aligned, anywhere
        self.address = next(_numbers)
        self._functions: WeakKeyDictionary[Gpu, Function] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @cached_property
    def ptx(self) -> str:
        return self._make_ptx()

    def function(self, gpu: Gpu) -> Function:
        """The code in the memory of a GPU, assembled or found on disk the first time."""
        with self._lock:
            found = self._functions.get(gpu)
            if found is None:
                module = Module(gpu, self._image(gpu), f"kernel {self.name}")
                found = self._functions[gpu] = module.function(self.name)
            return found

    def anywhere(self) -> GpuCode:
        assert self._make_anywhere is not None
        return self._make_anywhere()

    def _image(self, gpu: Gpu) -> bytes:
        """A cubin, or PTX if warps share out their registers. The driver's linker, which makes cubins, assembles for
        several units of code at once: there `setmaxnreg` is ignored, and wgmma that has no room for its sums is
        serialized (C7504 and C7512 of the assembler). Loaded as PTX it is a unit by itself, and kept on disk by the
        driver."""
        return self.ptx.encode() if "setmaxnreg" in self.ptx else self._cubin(gpu)

    def _cubin(self, gpu: Gpu) -> bytes:
        """Kept under what decides it: the text, and the version of the driver, which has the assembler in it."""
        what = f"{self.ptx}\0{gpu.info.arch}\0{gpu.info.driver_version}"
        key, cubins = hashlib.sha256(what.encode()).hexdigest(), cubin_cache()
        found = cubins.get(key) if cubins is not None else None
        if found is None:
            found = assemble(gpu, self.ptx, f"kernel {self.name}").cubin
            if cubins is not None:
                cubins.put(key, found)
        return found


class GpuKernel:
    """A kernel in the form that a GPU runs, with its code."""

    def __init__(self, kernel: Kernel, code: GpuCode) -> None:
        self.kernel, self.code = kernel, code


class PtxLoader:
    """Makes PTX of kernels for one kind of GPU, of each once; safe to use from several threads."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._kernels: WeakValueDictionary[str, GpuKernel] = WeakValueDictionary()
        self._lock = threading.Lock()

    def load(self, kernel: Kernel) -> GpuKernel:
        form = iterations_as_threads(kernel, self.machine.wave)
        key = cache_key(form, self.machine)
        if isinstance(form.origin, ProductOrigin) and form.origin.tiles != USUAL:
            # The same loops with other tiles for tensor cores.
            key += f"columns{form.origin.tiles.columns}band{form.origin.tiles.band}"
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                found = self._kernels[key] = GpuKernel(form, self._code(form, key))
            return found

    def _code(self, kernel: Kernel, key: str) -> GpuCode:
        aligned, made = needed_alignments(kernel), cache(lambda: self.load(without_alignment(kernel)))
        return self._made(kernel, key, aligned, (lambda: made().code) if aligned else None)

    def _made(
        self, kernel: Kernel, key: str, aligned: tuple[tuple[int, int], ...], anywhere: Callable[[], GpuCode] | None
    ) -> GpuCode:
        def compiled() -> str:
            from rlx.kernels.emit.llvm_codegen import compile_assembly

            return compile_assembly(kernel, self.machine)

        code = GpuCode(kernel.name, key, lambda: kept_ptx(key, compiled), kernel.thread_count, aligned, anywhere)
        code.forms, code.refusal = tensor_forms(kernel, self.machine)
        return code


def kept_ptx(key: str, make: Callable[[], str]) -> str:
    """PTX under a key: from disk, else made and kept there."""
    texts = ptx_cache()
    kept = texts.get(key) if texts is not None else None
    if kept is None:
        kept = make().encode()
        if texts is not None:
            texts.put(key, kept)
    return kept.decode()


def tensor_code(entry: str, what: str, make: Callable[[], str]) -> GpuCode:
    """Code for tensor cores, by all that decides it. Its launches say themselves how many threads they have."""
    key = hashlib.sha256(what.encode()).hexdigest()
    return GpuCode(entry, key, lambda: kept_ptx(key, make), 0)


def tensor_forms(kernel: Kernel, machine: Machine) -> tuple[tuple[TensorForm, ...], str]:
    """The tensor-core forms of a kernel that was made of a product or of attention, or why there is none."""
    params = [p.name for p in kernel.params]
    if isinstance(kernel.origin, ProductOrigin):
        product, acc, tiles = kernel.origin
        refusal, few_refusal = (f(product, acc, machine) for f in (product_refusal, few_rows_refusal))
        few = () if few_refusal else (FewRowsForm(product, params, machine, tensor_code),)
        many: tuple[TensorForm, ...] = () if refusal else (HopperForm(product, params, machine, tensor_code, tiles),)
        if refusal == BATCHES and not batched_refusal(product, acc, machine):
            many = (BatchedForm(product, params, machine, tensor_code),)
        elif refusal and not mma_refusal(product, acc, machine):
            many = (MmaForm(product, params, machine, tensor_code),)
        return (*few, *many), "" if few or many else refusal
    if isinstance(kernel.origin, RoutedOrigin):
        refusal = routed_refusal(kernel.origin, machine)
        return () if refusal else (RoutedForm(kernel.origin, params, machine, tensor_code),), refusal
    if isinstance(kernel.origin, WindowOrigin):
        refusal = window_refusal(kernel.origin, machine)
        return () if refusal else (WindowForm(kernel.origin, params, machine, tensor_code),), refusal
    if isinstance(kernel.origin, GradientSums):
        refusal = pixel_refusal(kernel.origin, machine)
        return () if refusal else (PixelForm(kernel.origin, params, machine, tensor_code),), refusal
    if isinstance(kernel.origin, CodesOrigin):
        refusal = codes_refusal(kernel.origin, machine)
        found: list[TensorForm] = [] if refusal else [CodeRowsForm(kernel.origin, params, machine, tensor_code)]
        if not expanded_refusal(kernel.origin, machine):
            # Asked first: it takes many rows only.
            found.insert(0, ExpandedForm(kernel.origin, params, machine, tensor_code))
        return tuple(found), "" if found else refusal
    if isinstance(kernel.origin, AttentionOrigin):
        ways, refusal = attention_ways(kernel.origin, machine)
        return tuple(form(kernel.origin, params, machine, tensor_code) for form in ways), refusal
    if isinstance(kernel.origin, GradientOrigin):
        refusal = gradient_form_refusal(kernel.origin)
        gradients = GradientForm if machine.has_wgmma else MmaGradientForm
        return (() if refusal else (gradients(kernel.origin, params, machine, tensor_code),)), refusal
    return (), kernel.origin.reason if isinstance(kernel.origin, AttentionRefusal) else ""


def gpu_loading(arch: str) -> Loading:
    """How programs for a kind of GPU are made."""
    loader = ptx_loader(arch)
    return Loading(loader.machine, loader.load)


@cache
def ptx_loader(arch: str) -> PtxLoader:
    machine = machine_named(arch)
    if machine.gpu != "nvptx":
        raise BackendError(f"cuda: {arch!r} is no NVIDIA architecture; use sm_80, sm_90a, sm_100 and the like")
    return PtxLoader(machine)


@cache
def ptx_cache() -> DiskCache | None:
    return disk_cache("ptx")


@cache
def cubin_cache() -> DiskCache | None:
    return disk_cache("cubins")


def disk_cache(folder: str) -> DiskCache | None:
    """None where nothing can be written."""
    try:
        return DiskCache(folder=folder)
    except (OSError, BackendError):
        return None
