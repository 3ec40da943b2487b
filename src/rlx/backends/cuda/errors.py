"""`CudaError`: what the driver's error codes mean, and what to do about each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from rlx.errors import BackendError


class ErrorCode(NamedTuple):
    """A code of the driver: its name without the prefix CUDA_ERROR_, what it means, and what a user can do."""

    name: str
    meaning: str
    advice: str


_RESTART = "nothing more can run in this process on that GPU: start it again"

SUCCESS = 0
OUT_OF_MEMORY = 2
NOT_READY = 600

CODES: dict[int, ErrorCode] = {
    1: ErrorCode("INVALID_VALUE", "an argument is out of range", "this is a fault of rlx: please report the program"),
    2: ErrorCode(
        "OUT_OF_MEMORY",
        "the GPU has no memory left for this",
        "use smaller inputs or a smaller model, free arrays, or end other programs on the GPU",
    ),
    3: ErrorCode("NOT_INITIALIZED", "the driver was not started", "this is a fault of rlx: please report it"),
    4: ErrorCode("DEINITIALIZED", "the driver has shut down", "do not run programs while Python is exiting"),
    34: ErrorCode("STUB_LIBRARY", "libcuda is a stub without a driver", "install the NVIDIA driver on this machine"),
    46: ErrorCode("DEVICE_UNAVAILABLE", "another process holds the GPU alone", "end it, or choose another GPU"),
    100: ErrorCode("NO_DEVICE", "the driver finds no GPU", "look at nvidia-smi and CUDA_VISIBLE_DEVICES"),
    101: ErrorCode("INVALID_DEVICE", "there is no GPU of that number", "look at nvidia-smi for the numbers"),
    200: ErrorCode("INVALID_IMAGE", "the driver cannot read the code", "this is a fault of rlx: please report it"),
    201: ErrorCode("INVALID_CONTEXT", "no context belongs to this thread", "this is a fault of rlx: please report it"),
    209: ErrorCode("NO_BINARY_FOR_GPU", "the code is for another GPU", "compile for the architecture of this GPU"),
    218: ErrorCode("INVALID_PTX", "the driver cannot assemble the PTX", "this is a fault of rlx: please report it"),
    221: ErrorCode("JIT_COMPILER_NOT_FOUND", "the driver's assembler is missing", "install the whole NVIDIA driver"),
    222: ErrorCode("UNSUPPORTED_PTX_VERSION", "the driver is older than the PTX", "install a newer NVIDIA driver"),
    304: ErrorCode("OPERATING_SYSTEM", "a call of the system failed", "look at the permissions of /dev/nvidia*"),
    400: ErrorCode("INVALID_HANDLE", "a handle is not valid", "this is a fault of rlx: please report it"),
    500: ErrorCode("NOT_FOUND", "a name was not found in the code", "this is a fault of rlx: please report it"),
    600: ErrorCode("NOT_READY", "the work is not done yet", "wait for it"),
    700: ErrorCode("ILLEGAL_ADDRESS", "a kernel touched memory that is not its own", _RESTART),
    701: ErrorCode("LAUNCH_OUT_OF_RESOURCES", "a kernel needs more registers or memory than a block has", _RESTART),
    702: ErrorCode("LAUNCH_TIMEOUT", "a kernel ran longer than the display allows", _RESTART),
    710: ErrorCode("ASSERT", "an assertion in a kernel failed", _RESTART),
    714: ErrorCode("HARDWARE_STACK_ERROR", "the stack of a kernel is broken", _RESTART),
    715: ErrorCode("ILLEGAL_INSTRUCTION", "a kernel met an instruction that the GPU does not know", _RESTART),
    716: ErrorCode("MISALIGNED_ADDRESS", "a kernel read or wrote at an address that is not aligned", _RESTART),
    717: ErrorCode("INVALID_ADDRESS_SPACE", "a kernel used an address of another kind of memory", _RESTART),
    718: ErrorCode("INVALID_PC", "a kernel jumped outside of its code", _RESTART),
    719: ErrorCode("LAUNCH_FAILED", "a kernel stopped with a fault", _RESTART),
    801: ErrorCode("NOT_SUPPORTED", "this GPU or driver cannot do that", "install a newer driver, or use another GPU"),
    802: ErrorCode("SYSTEM_NOT_READY", "the GPUs are not ready yet", "start nvidia-fabricmanager, or wait for it"),
    803: ErrorCode("SYSTEM_DRIVER_MISMATCH", "libcuda and the kernel module differ", "reboot, or install one driver"),
    804: ErrorCode("COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility needs another GPU", "update the driver"),
    900: ErrorCode("STREAM_CAPTURE_UNSUPPORTED", "this cannot be recorded in a graph", "run it outside of the capture"),
    901: ErrorCode("STREAM_CAPTURE_INVALIDATED", "the recording of a graph was broken", "run it once more"),
    910: ErrorCode("GRAPH_EXEC_UPDATE_FAILURE", "a graph has changed too much to be updated", "instantiate it anew"),
    999: ErrorCode("UNKNOWN", "the driver does not say what went wrong", "look at dmesg for messages of NVRM"),
}

# After these the context of the process is lost.
FATAL = frozenset(code for code, entry in CODES.items() if entry.advice is _RESTART)


class CudaError(BackendError):
    """A call of the driver that failed: its code and name, and whether the process can go on."""

    device: ClassVar[str] = "cuda"
    codes: ClassVar[Mapping[int, ErrorCode]] = CODES

    def __init__(self, code: int, what: str, detail: str = "") -> None:
        known = self.codes.get(code)
        self.code = code
        self.name = known.name if known is not None else f"code {code}"
        self.is_fatal = code in FATAL
        meaning = f"{known.meaning}; {known.advice}" if known is not None else "the driver's manual explains the code"
        super().__init__(f"{self.device}: {what}: {self.name}: {meaning}{f' ({detail})' if detail else ''}")
