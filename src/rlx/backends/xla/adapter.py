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

from rlx.errors import BackendError, InternalError, NotInstalled, OutOfMemory, ShardingError
from rlx.sharding import Mesh, MeshDevice, NamedSharding

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
        # Those of this process; all processes together may have more.
        self._devices = client.local_devices()
        # Meshes number devices without gaps; XLA leaves some between processes.
        self._by_id = dict(enumerate(sorted(client.devices(), key=lambda device: int(device.id))))
        self._lock = threading.Lock()
        self._shardings: dict[int, Any] = {}
        self._divisions: dict[tuple[NamedSharding, int], Any] = {}

    @property
    def platform(self) -> str:
        return str(self._client.platform)

    @property
    def mesh_devices(self) -> list[MeshDevice]:
        """The devices of all processes, in the order of their numbers."""
        found = sorted(self._by_id.items())
        return [MeshDevice(number, int(d.process_index), str(d.device_kind)) for number, d in found]

    @property
    def process_index(self) -> int:
        return int(self._client.process_index())

    def local_index(self, number: int) -> int:
        """The index among the devices of this process of the device with a number."""
        return next(i for i, device in enumerate(self._devices) if device.id == self._by_id[number].id)

    def local_positions(self, mesh: Mesh) -> list[int]:
        """The positions in a mesh whose devices belong to this process; an error if one of all is not there."""
        missing = [i for i in mesh.flat_ids if i not in self._by_id]
        if missing:
            raise ShardingError(
                f"xla: the mesh {mesh} has {mesh.size} devices, up to number {max(mesh.flat_ids)}, and there are "
                f"{len(self._by_id)}; set RLX_XLA_DEVICES={max(mesh.flat_ids) + 1} before the process starts, start "
                "more processes, or make the mesh smaller"
            )
        mine = self.process_index
        return [p for p, i in enumerate(mesh.flat_ids) if int(self._by_id[i].process_index) == mine]

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

    def put_parts(self, parts: Sequence[Array], dims: tuple[int, ...], sharding: NamedSharding) -> Buffer:
        """An array divided over a mesh, of the parts of this process in the order of its positions in the mesh. They
        belong to XLA from now on."""
        devices = [self._by_id[sharding.mesh.flat_ids[p]] for p in self.local_positions(sharding.mesh)]
        if not parts:
            raise ShardingError(f"xla: the mesh {sharding.mesh} has no device of process {self.process_index}")
        kind = _Type(np.broadcast_to(np.zeros((), parts[0].dtype), dims))
        with _translated("an array cannot be put on devices"):
            return _private().batched_device_put(
                kind, self._division(sharding, len(dims)), list(parts), devices, enable_x64=True
            )

    def joined(self, parts: Sequence[Buffer], dims: tuple[int, ...], dtype: np.dtype[Any], s: NamedSharding) -> Buffer:
        """Results of one program on the devices of this process as one divided array."""
        kind = _Type(np.broadcast_to(np.zeros((), dtype), dims))
        return _private().ArrayImpl(kind, self._division(s, len(dims)), list(parts), committed=True, _skip_checks=True)

    def parts(self, buffer: Buffer) -> list[Buffer]:
        """The parts of a divided array on the devices of this process, each a value of one device."""
        return list(buffer._arrays)

    def _division(self, sharding: NamedSharding, rank: int) -> Any:
        with self._lock:
            found = self._divisions.get((sharding, rank))
            if found is None:
                devices = tuple(self._by_id[i] for i in sharding.mesh.flat_ids)
                found = _private().GSPMDSharding(devices, _op_sharding(sharding, rank))
                self._divisions[sharding, rank] = found
            return found

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
        device = self._devices[index]
        with _translated(f"@{name} cannot be compiled"):
            made = self._client.compile_and_load(text, _xla().DeviceList((device,)), _options([device]))
        return LoadedProgram(made)

    def compile_divided(self, text: str, mesh: Mesh, name: str) -> LoadedProgram:
        """A module of StableHLO text with shardings for all devices of a mesh; every process compiles it."""
        self.local_positions(mesh)
        devices = [self._by_id[i] for i in mesh.flat_ids]
        options = _options(devices)
        build = options.executable_build_options
        build.use_spmd_partitioning = build.use_shardy_partitioner = True
        build.allow_spmd_sharding_propagation_to_output = [True]
        with _translated(f"@{name} cannot be compiled for the mesh {mesh}"):
            made = self._client.compile_and_load(text, _xla().DeviceList(tuple(devices)), options)
        return LoadedProgram(made)


class Division(NamedTuple):
    """How often each axis of an array is cut, and which part each device has, by its position in the mesh."""

    counts: tuple[int, ...]
    part_of: tuple[int, ...]

    @staticmethod
    def of(hlo: Any) -> Division:
        if hlo.is_replicated() or hlo.is_maximal():
            return Division((), ())
        dims = list(hlo.tile_assignment_dimensions())
        kept = len(dims) - len(hlo.subgroup_types()) - (1 if hlo.replicate_on_last_tile_dim() else 0)
        devices = np.asarray(hlo.tile_assignment_devices()).reshape(int(np.prod(dims[:kept])), -1)
        part_of = {int(device): part for part, row in enumerate(devices) for device in row}
        return Division(tuple(int(d) for d in dims[:kept]), tuple(part_of[i] for i in range(len(part_of))))


class ProgramMemory(NamedTuple):
    """Bytes that a program needs on one device. Results that lie in the memory of arguments are in both."""

    arguments: int
    results: int
    shared: int
    temporary: int

    @property
    def total(self) -> int:
        return self.arguments + self.results - self.shared + self.temporary


class LoadedProgram:
    """A compiled module on its device."""

    def __init__(self, executable: Any) -> None:
        self._executable = executable

    def run(self, arguments: Sequence[Buffer]) -> list[Buffer]:
        """The results, which may not have been computed yet; arguments that were compiled as donated are gone."""
        with _translated("a program cannot be started"):
            results = self._executable.execute_sharded(arguments)
            return [parts[0] for parts in results.disassemble_into_single_device_arrays()]

    def run_divided(self, arguments: Sequence[Buffer]) -> list[list[Buffer]]:
        """For each result its parts on the devices of this process."""
        with _translated("a program cannot be started"):
            results = self._executable.execute_sharded(arguments)
            return [list(parts) for parts in results.disassemble_into_single_device_arrays()]

    def result_divisions(self) -> list[Division]:
        """How XLA has divided each result."""
        found = [_xla().HloSharding.from_proto(proto) for proto in self._executable.get_output_shardings() or ()]
        return [Division.of(hlo) for hlo in found]

    @property
    def memory(self) -> ProgramMemory:
        """Bytes on each device."""
        stats = self._executable.get_compiled_memory_stats()
        return ProgramMemory(
            int(stats.argument_size_in_bytes),
            int(stats.output_size_in_bytes),
            int(stats.alias_size_in_bytes),
            int(stats.temp_size_in_bytes),
        )

    @property
    def flops(self) -> float:
        """Arithmetic on each device, as XLA counts it."""
        return float(self._executable.cost_analysis().get("flops", 0.0))

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


def _options(devices: Sequence[Any]) -> Any:
    """How a program for so many devices, one partition on each, is compiled."""
    options = _xla().CompileOptions()
    options.num_replicas, options.num_partitions = 1, len(devices)
    options.device_assignment = _xla().DeviceAssignment.create(np.array([[device.id for device in devices]]))
    # A cast to fewer digits rounds, also where XLA could do without it.
    options.env_option_overrides = [("xla_allow_excess_precision", False)]
    return options


def _op_sharding(sharding: NamedSharding, rank: int) -> Any:
    """A sharding as XLA's own description, whose devices are positions in the mesh."""
    counts = sharding.counts(rank)
    if all(count == 1 for count in counts):
        return _xla().HloSharding.replicate().to_proto()
    starts = [tuple(s.start for s in index) for index in sharding.indices(counts)]
    order = sorted(range(len(starts)), key=lambda p: (starts[p], p))
    copies = sharding.mesh.size // int(np.prod(counts))
    proto = _xla().OpSharding()
    proto.type = _xla().OpSharding.Type.OTHER
    proto.tile_assignment_dimensions = [*counts, copies] if copies > 1 else counts
    proto.tile_assignment_devices = order
    proto.replicate_on_last_tile_dim = copies > 1
    return proto


def require_installed() -> None:
    found = installed()
    if isinstance(found, Unusable):
        raise NotInstalled(f"xla: {found.reason}; {found.remedy}")


@cache
def open_client() -> Client:
    """The devices of the host; made once, because XLA's threads stay for as long as the process."""
    require_installed()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if not _connections:
        return Client(_xla().make_cpu_client(num_devices=device_count()))
    (joined,) = _connections
    with _translated("the processes cannot be joined"):
        collectives = _private().make_gloo_tcp_collectives(distributed_client=joined.client, hostname=joined.host)
        return Client(
            _xla().make_cpu_client(
                distributed_client=joined.client,
                node_id=joined.rank,
                num_nodes=joined.processes,
                collectives=collectives,
                num_devices=device_count(),
            )
        )


class Connection:
    """This process as one of several that run the same program."""

    def __init__(self, client: Any, rank: int, processes: int, host: str) -> None:
        self.client, self.rank, self.processes, self.host = client, rank, processes, host

    def wait_for_all(self, name: str, seconds: float) -> None:
        """Return when all processes have called this with the same name; a name serves once."""
        with _translated(f"waiting for the other processes at {name!r}"):
            self.client.wait_at_barrier(name, int(seconds * 1000))

    def beat(self) -> dict[int, int]:
        """Say that this process lives; how often each one, by its rank, has said so."""
        with _translated("the service of the processes does not answer"):
            self.client.key_value_increment(f"{_ALIVE}/{self.rank}", 1)
            told = self.client.key_value_dir_get(_ALIVE)
        return {int(name.rpartition("/")[2]): int(count) for name, count in told}

    def tell(self, name: str, text: str) -> None:
        """Leave a text for the others under a name that serves once."""
        with _translated(f"{name!r} cannot be told to the other processes"):
            self.client.key_value_set(name, text)

    def told(self, name: str, seconds: float) -> str:
        """The text that another process leaves under a name; waits for it."""
        with _translated(f"{name!r} was not told by another process"):
            return str(self.client.blocking_key_value_get(name, int(seconds * 1000)))

    def leave(self) -> None:
        """Wait for the others to be done as well, and part."""
        with _translated("the processes cannot part"):
            self.client.shutdown()


_ALIVE = "rlx/alive"
_connections: list[Connection] = []


def connection() -> Connection | None:
    """How this process is joined to others; None if it is alone."""
    return _connections[0] if _connections else None


def require_unused() -> None:
    """Processes are joined before the first device is used."""
    require_installed()
    if open_client.cache_info().currsize:
        raise ShardingError("initialize: devices are in use already; call it before anything runs on xla")


def start_service(bind: str, processes: int, timeout: int) -> object:
    """The service through which processes find each other; it lives as long as what is returned."""
    require_installed()
    with _translated(f"it cannot listen at {bind}"):
        service: object = _private().get_distributed_runtime_service(
            bind, processes, cluster_register_timeout=timeout, shutdown_timeout=timeout
        )
    return service


def connect(address: str, host: str, processes: int, rank: int, timeout: int) -> Connection:
    """Join the processes whose service is at an address."""
    require_unused()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with _translated("the processes cannot be joined"):
        # A callback for missed heartbeats gets a status that jaxlib cannot hand to Python; `Connection.beat` is ours.
        client = _private().get_distributed_runtime_client(
            address, rank, init_timeout=timeout, shutdown_timeout=timeout, shutdown_on_destruction=False
        )
        client.connect()
    made = Connection(client, rank, processes, host)
    _connections.append(made)
    return made


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
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    return context
