"""The USB peripheral of nRF52840 as its specification describes it, with a host at the other end of the cable.

Firmware is built for this machine with its registers led here. A host is a generator: it acts, and yields to let the
firmware poll once more. What hardware would not do as the firmware expects is a fault, and so is a host kept waiting.

    model = ChipModel(build(folder, ["serial_main.c", "usb_cdc.c"]))
    def host(bus):
        yield from bus.plug_in()
        descriptor = yield from bus.control(0x80, 6, 0x0100, 0, 18)
    model.run(host)
"""

import ctypes
import random
import subprocess
from collections import defaultdict

PACKET = 64
USBD = 0x40027000
IN = 0x80
_READ = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32)
_WRITE = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32)
_POINTER = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_void_p)
# How often the firmware may poll before it has answered.
_PATIENCE = 40

_GLUE = """\
#include <setjmp.h>
#include <stdint.h>
int firmware_main(void);
uint32_t (*model_read)(uint32_t);
void (*model_write)(uint32_t, uint32_t);
void (*model_pointer)(uint32_t, const void *);
int model_stops;
static jmp_buf end;
uint32_t chip_read(uint32_t address);
void chip_write(uint32_t address, uint32_t value);
void chip_write_pointer(uint32_t address, const void *value);
void run_firmware(void);
uint32_t chip_read(uint32_t address)
{
    uint32_t value = model_read(address);
    if (model_stops) longjmp(end, 1);
    return value;
}
void chip_write(uint32_t address, uint32_t value) { model_write(address, value); }
void chip_write_pointer(uint32_t address, const void *value) { model_pointer(address, value); }
void run_firmware(void) { if (!setjmp(end)) (void)firmware_main(); }
"""


class Stall(Exception):
    """The device refused."""


def build(folder, sources):
    """The firmware of a folder as a library of this machine."""
    (folder / "model_glue.c").write_text(_GLUE)
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-shared", "-fPIC"]
    names = ["-DRLX_MODEL_OF_CHIP", "-Dmain=firmware_main", "-o", "firmware.so"]
    subprocess.run(["gcc", *flags, *names, *sources, "model_glue.c"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "firmware.so"))


def _writable():
    with open("/proc/self/maps") as maps:
        rows = [line.split()[:2] for line in maps]
    return [tuple(int(end, 16) for end in where.split("-")) for where, may in rows if "w" in may]


class ChipModel:
    """Registers and what they do; the other end of the cable has the methods of a host."""

    def __init__(self, library):
        self.library, self.faults, self.done = library, [], False
        self.registers, self.pointers = defaultdict(int), {}
        self.incoming, self.outgoing = {}, {}  # endpoint -> packet in its memory
        self.welcome, self.halted = set(), set()
        self.toggles, self.host_toggles = {}, {}
        self.stage, self.address, self.is_enabled = None, 0, False

    def run(self, host):
        """Start the firmware, let the host act, and stop when the host is done."""
        script = host(self)

        def read(address):
            if address == 0x40000438 and not self.done:
                try:
                    next(script)
                except StopIteration:
                    self.done = True
                except BaseException as error:
                    self.faults.append(error)
                if self.done or self.faults:
                    ctypes.c_int.in_dll(self.library, "model_stops").value = 1
            return self.registers[address]

        kept = _READ(read), _WRITE(self._guarded(self.write)), _POINTER(self._guarded(self.point))
        for name, function in zip(("model_read", "model_write", "model_pointer"), kept):
            ctypes.c_void_p.in_dll(self.library, name).value = ctypes.cast(function, ctypes.c_void_p).value
        self.library.run_firmware()
        if self.faults:
            raise self.faults[0]
        assert self.done

    def _guarded(self, function):
        """Errors do not go through C: they are kept, and end the run."""

        def guarded(*given):
            try:
                function(*given)
            except BaseException as error:
                self.faults.append(error)

        return guarded

    def event(self, offset):
        self.registers[USBD + offset] = 1

    def point(self, address, value):
        self.pointers[address] = value

    def write(self, address, value):
        offset = address - USBD
        if address == 0x40000000:
            self.registers[0x40000100] = 1
        elif address in (0x4006EC14, 0x4006ED14):
            assert self.registers[0x4006EC00], "a hidden register was written while locked"
            self.registers[address] = value
        elif address == 0x4006EC00:
            assert value == 0x9375
            self.registers[address] ^= value
        elif offset == 0x500:
            self._enable(value)
        elif offset in (0x400, 0x46C):
            self.registers[address] &= ~value
        elif 0 <= offset < 0x100:
            self._task(offset)
        elif 0x4A0 <= offset < 0x4C0:
            self.welcome.add((offset - 0x4A0) // 4)
            self.outgoing.pop((offset - 0x4A0) // 4, None)
        elif offset == 0x50C:
            assert value >> 8 == 1, "toggles are only ever set to DATA0"
            self.toggles[value & 0x87] = 0
        elif offset == 0x518:
            (self.halted.add if value & 0x100 else self.halted.discard)(value & 0x87)
        else:
            assert not 0x100 <= offset < 0x200 or value == 0, "events are cleared"
            self.registers[address] = value

    def _enable(self, value):
        self.is_enabled = bool(value)
        if value:
            assert self.registers[0x40000100], "the crystal has not started"
            assert (self.registers[0x4006EC14], self.registers[0x4006ED14]) == (0xC0, 3), "errata 171 and 187"
            self.registers[USBD + 0x400] |= 0x800
            self.registers[0x40000438] |= 2

    def _task(self, offset):
        assert self.is_enabled
        is_transfer = 0x004 <= offset < 0x024 or 0x028 <= offset < 0x048
        assert self.registers[USBD + 0xC1C] == (0x82 if is_transfer else 0), "errata 199"
        if 0x004 <= offset < 0x024:
            self._into_endpoint((offset - 0x004) // 4)
        elif 0x028 <= offset < 0x048:
            self._from_endpoint((offset - 0x028) // 4)
        else:
            self.stage = {0x04C: "receive", 0x050: "status", 0x054: "stall"}[offset]

    def _memory(self, register):
        pointer, size = self.pointers[USBD + register], self.registers[USBD + register + 4]
        assert size <= PACKET and pointer % 4 == 0
        assert any(low <= pointer and pointer + size <= high for low, high in _writable()), "not in RAM"
        return pointer, size

    def _into_endpoint(self, n):
        assert self.registers[USBD + 0x510] >> n & 1, f"endpoint {n} in is off"
        assert n not in self.incoming, f"endpoint {n} has a packet already"
        pointer, size = self._memory(0x600 + 20 * n)
        self.incoming[n] = ctypes.string_at(pointer, size)
        self.event(0x108 + 4 * n)

    def _from_endpoint(self, n):
        assert self.registers[USBD + 0x514] >> n & 1, f"endpoint {n} out is off"
        pointer, size = self._memory(0x700 + 20 * n)
        data = self.outgoing.pop(n)
        assert size == len(data)
        ctypes.memmove(pointer, data, size)
        self.welcome.add(n)
        self.event(0x130 + 4 * n)

    # The host.

    def wait(self, condition, what):
        for _ in range(_PATIENCE):
            if condition():
                return
            yield
        raise AssertionError(f"the device did not answer: {what}")

    def plug_in(self):
        self.registers[0x40000438] |= 1
        yield from self.wait(lambda: self.registers[USBD + 0x504], "pull-up")
        yield from self.reset()

    def pull_out(self):
        self.registers[0x40000438] = 0
        yield from self.wait(lambda: not self.registers[USBD + 0x504] and not self.is_enabled, "off")

    def reset(self):
        self.address, self.stage = 0, None
        self.incoming.clear()
        self.outgoing.clear()
        # Nobody knows what toggles are now: who relies on them has to set them.
        self.toggles = {e: random.randrange(2) for e in (0x81, 0x82, 0x02)}
        self.event(0x100)
        yield
        yield

    def setup(self, kind, request, value, index, length):
        """The first packet of a request; it ends whatever went on before."""
        fields = (kind, request, value & 255, value >> 8, index & 255, index >> 8, length & 255, length >> 8)
        for n, byte in enumerate(fields):
            self.registers[USBD + 0x480 + 4 * n] = byte
        self.stage = None
        self.incoming.pop(0, None)
        self.outgoing.pop(0, None)
        self.event(0x15C)

    def control(self, kind, request, value=0, index=0, length=0, data=b""):
        """A whole request; the bytes that come back."""
        self.setup(kind, request, value, index, length or len(data))
        if (kind, request) == (0, 5):
            self.address = value
            yield
            yield
            assert self.stage is None, "the peripheral answers this by itself"
            return b""
        got = b""
        if kind & IN and length:
            while True:
                yield from self.wait(lambda: 0 in self.incoming or self.stage == "stall", "data")
                if self.stage == "stall":
                    raise Stall
                packet = self.incoming.pop(0)
                got += packet
                assert len(got) <= length
                self.event(0x128)
                if len(packet) < PACKET or len(got) == length:
                    break
        elif data:
            yield from self.wait(lambda: self.stage in ("receive", "stall"), "readiness")
            if self.stage == "receive":
                self.stage = None
                self.outgoing[0] = data
                self.registers[USBD + 0x4A0] = len(data)
                self.event(0x128)
        yield from self.wait(lambda: self.stage in ("status", "stall"), "status")
        if self.stage == "stall":
            raise Stall
        if (kind, request) in ((0, 9), (0, 5)):
            self.host_toggles.clear()
        elif (kind, request, value) == (2, 1, 0):
            self.host_toggles[index] = 0
        return got

    def _turn(self, endpoint):
        """Both ends count packets by one bit."""
        assert self.toggles[endpoint] == self.host_toggles.get(endpoint, 0), "toggles differ: the packet is dropped"
        self.toggles[endpoint] ^= 1
        self.host_toggles[endpoint] = self.toggles[endpoint]

    def send(self, endpoint, data, packet=PACKET):
        """Bulk out, in packets of a size."""
        for start in range(0, len(data), packet):
            if endpoint in self.halted:
                raise Stall
            yield from self.wait(lambda: endpoint in self.welcome and endpoint not in self.outgoing, "room")
            self._turn(endpoint)
            self.welcome.discard(endpoint)
            self.outgoing[endpoint] = data[start : start + packet]
            self.registers[USBD + 0x4A0 + 4 * endpoint] = len(self.outgoing[endpoint])
            self.registers[USBD + 0x46C] |= 1 << (16 + endpoint)
            self.event(0x160)

    def receive(self, endpoint, count):
        """Bulk in: packets until one is not full, or there are enough bytes."""
        got = b""
        while True:
            if IN | endpoint in self.halted:
                raise Stall
            yield from self.wait(lambda: endpoint in self.incoming, "a packet")
            self._turn(IN | endpoint)
            packet = self.incoming.pop(endpoint)
            got += packet
            self.registers[USBD + 0x46C] |= 1 << endpoint
            self.event(0x160)
            if len(packet) < PACKET or len(got) >= count:
                return got

    def enumerate(self):
        """What an operating system does with a new device; the configuration that it reads."""
        yield from self.plug_in()
        first = yield from self.control(IN, 6, 0x0100, 0, 64)
        yield from self.reset()
        yield from self.control(0, 5, 23)
        device = yield from self.control(IN, 6, 0x0100, 0, 18)
        assert device == first
        head = yield from self.control(IN, 6, 0x0200, 0, 9)
        whole = yield from self.control(IN, 6, 0x0200, 0, int.from_bytes(head[2:4], "little"))
        yield from self.control(0, 9, 1)
        return device, whole

    def open_line(self):
        """As a program does that opens the port."""
        yield from self.control(0x21, 0x22, 3, 0)
