"""Everything that is private of jaxlib: clients, compiles, runs, buffers. No other file imports it.

    client = open_client()                       # the devices that XLA finds
    program = client.compile(text, index)        # StableHLO text, checked by jaxlib's parser
    (y,) = program.run([client.put(array, index)])
    client.fetch(y)

What is used here has no stability promise, so only the releases in `KNOWN` are accepted. jax is not needed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import BackendError, InternalError, NotInstalled, OutOfMemory

Array = np.ndarray[Any, np.dtype[Any]]
# A value of XLA, on one device.
Buffer = Any

# Releases that this file was run with.
KNOWN = ("0.10.2",)
REMEDY = f'pip install "jaxlib=={KNOWN[-1]}", which the extra rlx[xla] does'


class Installed(NamedTuple):
    """A jaxlib that this file knows, by its version."""

    version: str


class Unusable(NamedTuple):
    """No jaxlib, or none that can be used: why, and what to do."""

    reason: str
    remedy: str


def _private() -> Any:
    from jaxlib import _jax

    return _jax


def _xla() -> Any:
    from jaxlib import xla_client

    return xla_client


@cache
def installed() -> Installed | Unusable:
    """Looks for the package without loading it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("jaxlib")
    except PackageNotFoundError:
        return Unusable("XLA comes with the package jaxlib, which is not installed", REMEDY)
    if found not in KNOWN:
        known = " or ".join(KNOWN)
        return Unusable(f"jaxlib {found} is installed, and its private parts are known for {known} only", REMEDY)
    return Installed(found)


def device_count() -> int:
    """How many devices the host is divided into: `RLX_XLA_DEVICES`, else what `XLA_FLAGS` says, else 1."""
    from rlx.knobs import knobs

    if knobs.xla_devices is not None:
        return int(knobs.xla_devices)
    for flag in os.environ.get("XLA_FLAGS", "").split():
        name, _, value = flag.partition("=")
        if name == "--xla_force_host_platform_device_count" and value.isdigit() and int(value):
            return int(value)
    return 1


class _Type:
    """What jaxlib asks of the type of an array that is brought to a device."""

    def __init__(self, array: Array) -> None:
        self.shape, self.dtype, self.ndim, self.size = array.shape, array.dtype, array.ndim, array.size
        self.weak_type = False


class Client:
    """The devices of one platform of XLA."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._devices = client.devices()
        self._lock = threading.Lock()
        self._shardings: dict[int, Any] = {}

    @property
    def platform(self) -> str:
        return str(self._client.platform)

    @property
    def device_names(self) -> list[str]:
        return [str(device.device_kind) for device in self._devices]

    @property
    def is_host(self) -> bool:
        """Whether the memory of its devices is that of the host."""
        return self.platform == "cpu"

    def put(self, array: Array, index: int) -> Buffer:
        """A copy of an array of the host on a device."""
        # XLA may read the memory of the host for as long as the value lives, so it gets its own.
        try:
            owned = np.array(array, order="C", copy=True)
        except MemoryError:
            raise OutOfMemory(f"there is no memory for a copy of {array.dtype}{list(array.shape)}") from None
        device = self._devices[index]
        kind = _Type(owned)
        return _private().batched_device_put(kind, self._sharding(index), [owned], [device], enable_x64=True)

    def _sharding(self, index: int) -> Any:
        with self._lock:
            if index not in self._shardings:
                alone = _xla().HloSharding.replicate().to_proto()
                self._shardings[index] = _private().GSPMDSharding((self._devices[index],), alone)
            return self._shardings[index]

    def fetch(self, buffer: Buffer) -> Array:
        """A copy of a value on the host; waits for it."""
        with _translated("a value cannot be read"):
            array, _ = buffer._single_device_array_to_np_array_did_copy()
        return np.array(array, copy=True)

    def view(self, buffer: Buffer) -> Array:
        """A value as the host sees it, without a copy where memory is shared; not to be written or kept."""
        with _translated("a value cannot be read"):
            array: Array = buffer._single_device_array_to_np_array_did_copy()[0]
        return array

    def wait(self, buffer: Buffer) -> None:
        with _translated("a program failed"):
            buffer.block_until_ready()

    def dlpack(self, buffer: Buffer) -> Any:
        """A capsule of the DLPack protocol, which shares the memory of a value."""
        with _translated("a value cannot be shared by DLPack"):
            return _private().buffer_to_dlpack_managed_tensor(buffer)

    def from_dlpack(self, capsule: Any, index: int) -> Buffer:
        """A value that shares the memory of a capsule."""
        with _translated("an array cannot be taken over by DLPack"):
            return _private().dlpack_managed_tensor_to_buffer(capsule, self._devices[index], None)

    def compile(self, text: str, index: int, name: str) -> LoadedProgram:
        """A module of StableHLO text for one device."""
        options = _xla().CompileOptions()
        options.num_replicas = options.num_partitions = 1
        device = self._devices[index]
        options.device_assignment = _xla().DeviceAssignment.create(np.array([[device.id]]))
        # A cast to fewer digits rounds, also where XLA could do without it.
        options.env_option_overrides = [("xla_allow_excess_precision", False)]
        with _translated(f"@{name} cannot be compiled"):
            made = self._client.compile_and_load(text, _xla().DeviceList((device,)), options)
        return LoadedProgram(made)


class LoadedProgram:
    """A compiled module on its device."""

    def __init__(self, executable: Any) -> None:
        self._executable = executable

    def run(self, arguments: Sequence[Buffer]) -> list[Buffer]:
        """The results, which may not have been computed yet; arguments that were compiled as donated are gone."""
        with _translated("a program cannot be started"):
            results = self._executable.execute_sharded(arguments)
            return [parts[0] for parts in results.disassemble_into_single_device_arrays()]

    @property
    def code_bytes(self) -> int:
        return int(self._executable.size_of_generated_code_in_bytes())

    @property
    def scratch_bytes(self) -> int:
        """The memory for values in between."""
        return int(self._executable.get_compiled_memory_stats().temp_size_in_bytes)

    def optimized_text(self) -> str:
        """What XLA made of the program, as HLO."""
        return "\n".join(module.to_string() for module in self._executable.hlo_modules())


class _translated:
    """What jaxlib raises inside the block, as an error of ours that says what went wrong."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ValueError | RuntimeError | TypeError):
            text = str(error)
            if "RESOURCE_EXHAUSTED" in text:
                raise BackendError(f"xla: {self._what}: there is not enough memory; {text}") from error
            raise InternalError(f"xla: {self._what}: {text}") from error


def require_installed() -> None:
    found = installed()
    if isinstance(found, Unusable):
        raise NotInstalled(f"xla: {found.reason}; {found.remedy}")


@cache
def open_client() -> Client:
    """The devices of the host; made once, because XLA's threads stay for as long as the process."""
    require_installed()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return Client(_xla().make_cpu_client(num_devices=device_count()))


@cache
def load_plugin(name: str, library: str) -> None:
    """Make a plugin of PJRT known, by the path of its library; a process loads one once."""
    require_installed()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _translated(f"the plugin {library} cannot be loaded"):
        # What failed halfway is not done again.
        if not _xla().pjrt_plugin_loaded(name):
            _xla().load_pjrt_plugin_dynamically(name, library)
        if not _xla().pjrt_plugin_initialized(name):
            _xla().initialize_pjrt_plugin(name)


@cache
def open_plugin(name: str, library: str) -> Client:
    """The devices that a plugin finds."""
    load_plugin(name, library)
    with _translated(f"the plugin {library} finds no device"):
        return Client(_xla().make_c_api_client(name, {}, None))


class AheadProgram:
    """A module compiled for a device that need not be here."""

    def __init__(self, executable: Any, device_kind: str) -> None:
        self._executable, self.device_kind = executable, device_kind

    @property
    def memory(self) -> dict[str, int]:
        """Bytes on the device."""
        found = self._executable.get_compiled_memory_stats()
        names = {"arguments": "argument", "results": "output", "shared": "alias", "scratch": "temp"}
        names["code"] = "generated_code"
        return {ours: int(getattr(found, f"{theirs}_size_in_bytes")) for ours, theirs in names.items()}

    @property
    def layouts(self) -> tuple[list[str], list[str]]:
        """How arguments and results lie in memory."""
        made = self._executable
        return [str(x) for x in made.get_parameter_layouts()], [str(x) for x in made.get_output_layouts()]

    @property
    def flops(self) -> float:
        """What XLA counts for a run. The seconds that it expects are of no use: they come out negative."""
        return float(self._executable.cost_analysis().get("flops", 0.0))

    def serialized(self) -> bytes:
        return bytes(self._executable.serialize())

    def optimized_text(self) -> str:
        """What XLA made of the program, as HLO."""
        return "\n".join(module.to_string() for module in self._executable.hlo_modules())


def compile_for_topology(name: str, library: str, topology: str, text: str, program: str) -> AheadProgram:
    """A module for one chip of a topology of the TPU plugin, none of which need be here."""
    load_plugin(name, library)
    with _translated(f"there is no topology {topology!r}"):
        devices = _xla().make_tfrt_tpu_c_api_device_topology(topology)._make_compile_only_devices()
    options = _xla().CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = _xla().DeviceAssignment.create(np.array([[devices[0].id]]))
    with _translated(f"@{program} cannot be compiled for {topology}"), _mlir_context():
        chosen = _xla().DeviceList((devices[0],))
        made = devices[0].client.compile(_parsed(text), executable_devices=chosen, compile_options=options)
    return AheadProgram(made, str(devices[0].device_kind))


def checked_module(text: str) -> str:
    """The text again as jaxlib's parser writes it, once its verifier has found nothing wrong."""
    require_installed()
    with _mlir_context(), _translated("the verifier of StableHLO refuses a module"):
        return str(_parsed(text))


def _parsed(text: str) -> Any:
    from jaxlib.mlir import ir

    return ir.Module.parse(text)


def _mlir_context() -> Any:
    """What modules of StableHLO are parsed in."""
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, stablehlo

    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo):
        dialect.register_dialect(context)
    return context
