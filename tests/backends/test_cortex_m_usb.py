"""The USB line of the nRF52840's firmware, against a model of the peripheral with a host at its other end.

Nothing here ran on a chip: what the model does is what the product specification says.
"""

import shutil
import subprocess

import numpy as np
import pytest

from backends.usb_chip_model import IN, PACKET, ChipModel, Stall, build
from integer_programs.float_networks import CONVNET_DIMS, RESIDUAL_DIMS, convnet, images, residual, traced
from rlx.backends.cortex_m.firmware import firmware_files
from rlx.backends.cortex_m.project import CORES
from rlx.cortexm import export
from rlx.quantized import quantize

pytestmark = [
    pytest.mark.targets,
    pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc (make tools)"),
]
BULK = 2

# In place of a network: results are the input reversed, in two packets or in whole ones.
_NET = """\
#include <stdint.h>
#define NET_INPUT_SIZE {size}u
#define NET_OUTPUT_SIZE {size}u
#define NET_ARENA_BYTES (2u * {size}u)
typedef uint8_t net_input_t;
typedef uint8_t net_output_t;
static uint8_t *net_input(void *arena) {{ return (uint8_t *)arena; }}
static uint8_t *net_output(void *arena) {{ return (uint8_t *)arena + {size}; }}
static void net_run(void *arena)
{{
    uint32_t n;
    for (n = 0; n < {size}u; n++) net_output(arena)[n] = net_input(arena)[{size}u - 1u - n];
}}
"""


@pytest.fixture(scope="module")
def firmware(tmp_path_factory):
    """Size of a frame -> a model of a chip that has firmware with such frames."""

    def made(size=100, product="net"):
        folder = tmp_path_factory.mktemp("usb")
        files = firmware_files("net", CORES["cortex-m4"], False, "nrf52840", "usb")
        for name, text in {**files, "net.h": _NET.format(size=size)}.items():
            (folder / name).write_text(text.replace('USB_PRODUCT "net"', f'USB_PRODUCT "{product}"'))
        return ChipModel(build(folder, ["serial_main.c", "usb_cdc.c"]))

    return made


def frame(size=100, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8).tobytes()


def refused(request):
    """A request that has to be stalled."""
    try:
        yield from request
    except Stall:
        return
    raise AssertionError("the device accepted")


def descriptors(data):
    """A chain of descriptors: each begins with its length."""
    while data:
        yield data[: data[0]]
        data = data[data[0] :]


def test_a_host_reads_what_the_device_is(firmware):
    def host(bus):
        device, configuration = yield from bus.enumerate()
        assert bus.address == 23
        assert (device[8:10], device[10:12]) == (b"\xc0\x16", b"\xdd\x27") and device[4] == 2 and device[7] == PACKET
        parts = list(descriptors(configuration))
        assert int.from_bytes(configuration[2:4], "little") == len(configuration) == sum(map(len, parts))
        interfaces = [p for p in parts if p[1] == 4]
        assert [(p[2], p[4], *p[5:7]) for p in interfaces] == [(0, 1, 2, 2), (1, 2, 10, 0)]
        endpoints = {p[2]: (p[3], int.from_bytes(p[4:6], "little")) for p in parts if p[1] == 5}
        assert endpoints == {0x81: (3, 8), 0x02: (2, PACKET), 0x82: (2, PACKET)}
        assert [p[2] for p in parts if p[1] == 0x24] == [0, 1, 2, 6]
        for index, wanted in ((1, "rlx"), (2, "net"), (3, "0123456789ABCDEF")):
            text = yield from bus.control(IN, 6, 0x0300 | index, 0x0409, 255)
            assert text[:2] == bytes((len(text), 3)) and text[2:].decode("utf-16-le") == wanted
        languages = yield from bus.control(IN, 6, 0x0300, 0, 255)
        assert languages == b"\x04\x03\x09\x04"
        assert (yield from bus.control(IN, 8, 0, 0, 1)) == b"\x01"
        assert (yield from bus.control(IN | 1, 10, 0, 1, 1)) == b"\x00"
        for kind, index in ((0, 0), (1, 1), (2, 0x82)):
            assert (yield from bus.control(IN | kind, 0, 0, index, 2)) == b"\x00\x00"

    model = firmware()
    model.registers[0x10000064], model.registers[0x10000060] = 0x01234567, 0x89ABCDEF
    model.run(host)


def test_answers_end_where_the_host_expects_it(firmware):
    """Fewer bytes than there are; as many as a packet; more than there are, which ends by a short packet."""

    def host(bus):
        _, whole = yield from bus.enumerate()
        for length in (1, 8, 9, 63, 64, 65, 67, 68, 128, 255, 4096):
            assert (yield from bus.control(IN, 6, 0x0200, 0, length)) == whole[:length]
        # A text of exactly one packet: a packet of nothing follows where more was asked for.
        for length in (64, 65, 255):
            text = yield from bus.control(IN, 6, 0x0302, 0x0409, length)
            assert text[2:].decode("utf-16-le") == "a" * 31

    firmware(product="a" * 31).run(host)


def test_what_is_unknown_is_stalled_and_the_next_request_answered(firmware):
    def host(bus):
        yield from bus.plug_in()
        yield from refused(bus.control(0x21, 0x20, 0, 0, data=bytes(7)))  # before there is a configuration
        yield from refused(bus.control(IN | 2, 0, 0, 0x82, 2))
        yield from bus.control(0, 9, 1)
        unknown = [
            (IN, 6, 0x0600, 0, 10),  # another speed
            (IN, 6, 0x0201, 0, 9),  # a second configuration
            (IN, 6, 0x0304, 0, 255),  # a text that is not there
            (0, 9, 2, 0, 0),
            (0, 3, 1, 0, 0),  # waking the host
            (1, 11, 1, 0, 0),
            (IN | 1, 10, 0, 2, 1),
            (2, 3, 0, 0x83, 0),
            (IN | 2, 0, 0, 3, 2),
            (0x21, 0x23, 10, 0, 0),  # a break
            (0x21, 0x22, 1, 1, 0),
            (0xA1, 0x99, 0, 0, 8),
            (0xC0, 1, 0, 0, 8),  # a vendor's own
            (IN, 12, 0, 0, 2),
        ]
        for request in unknown:
            yield from refused(bus.control(*request))
            assert (yield from bus.control(IN, 8, 0, 0, 1)) == b"\x01"
        yield from refused(bus.control(0x21, 0x20, 0, 0, data=bytes(6)))

    firmware().run(host)


def test_the_line_coding_is_kept(firmware):
    def host(bus):
        yield from bus.enumerate()
        assert (yield from bus.control(0xA1, 0x21, 0, 0, 7)) == (115200).to_bytes(4, "little") + b"\x00\x00\x08"
        coding = (9600).to_bytes(4, "little") + b"\x02\x01\x07"
        yield from bus.control(0x21, 0x20, 0, 0, data=coding)
        assert (yield from bus.control(0xA1, 0x21, 0, 0, 7)) == coding

    firmware().run(host)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 100, 128, 784])
@pytest.mark.parametrize("packet", [64, 17])
def test_frames_in_packets_of_any_size(firmware, size, packet):
    """Frames come split over packets, several in one packet, and results end by a packet that is not full."""

    def host(bus):
        yield from bus.enumerate()
        yield from bus.open_line()
        frames = [frame(size, seed) for seed in range(3)]
        for data in frames:
            yield from bus.send(BULK, data, packet)
            assert (yield from bus.receive(BULK, size + 1)) == data[::-1]
        if size == 1:
            yield from bus.send(BULK, b"".join(frames))
            for data in frames:
                assert (yield from bus.receive(BULK, 2)) == data

    firmware(size).run(host)


def test_requests_between_packets_of_a_frame(firmware):
    def host(bus):
        _, whole = yield from bus.enumerate()
        yield from bus.open_line()
        data = frame()
        yield from bus.send(BULK, data[:64])
        assert (yield from bus.control(IN, 6, 0x0200, 0, 67)) == whole
        yield from refused(bus.control(0xC0, 1, 0, 0, 8))
        yield from bus.send(BULK, data[64:])
        assert (yield from bus.control(0xA1, 0x21, 0, 0, 7))
        assert (yield from bus.receive(BULK, 101)) == data[::-1]

    firmware().run(host)


def test_a_request_that_the_host_gives_up(firmware):
    """A new setup packet comes before the data of the last request was fetched, and before its status."""

    def host(bus):
        device, whole = yield from bus.enumerate()
        for polls in range(4):
            bus.setup(IN, 6, 0x0200, 0, 67)
            for _ in range(polls):
                yield
            assert (yield from bus.control(IN, 6, 0x0100, 0, 18)) == device
            bus.setup(IN, 6, 0x0200, 0, 67)
            yield from bus.wait(lambda: 0 in bus.incoming, "the first packet")
            bus.incoming.pop(0)
            bus.event(0x128)  # it is fetched, and the rest is not
            bus.setup(IN, 6, 0x0200, 0, 67)
            for _ in range(3):
                yield
            assert bus.incoming[0] == whole[:PACKET]
            assert (yield from bus.control(IN, 6, 0x0200, 0, 67)) == whole
            bus.setup(0x21, 0x20, 0, 0, 7)
            for _ in range(polls):
                yield
            assert (yield from bus.control(IN, 6, 0x0200, 0, 67)) == whole

    firmware().run(host)


def test_frames_that_are_sent_ahead(firmware):
    """Results of one frame wait while the next comes in: what there is no room for stays in the endpoint."""

    def host(bus):
        yield from bus.enumerate()
        yield from bus.open_line()
        frames = [frame(seed=seed) for seed in range(3)]
        yield from bus.send(BULK, frames[0])
        yield from bus.send(BULK, frames[1])
        for n in range(3):
            assert (yield from bus.receive(BULK, 101)) == frames[n][::-1]
            if n == 0:
                yield from bus.send(BULK, frames[2])

    firmware().run(host)


def test_what_one_program_left_is_not_the_next_ones(firmware):
    """A frame is answered and not read, of another two packets came: one is taken, one waits in the endpoint."""

    def host(bus):
        yield from bus.enumerate()
        yield from bus.open_line()
        data = frame()
        yield from bus.send(BULK, data)
        yield from bus.send(BULK, data[:80], 40)
        yield from bus.control(0x21, 0x22, 0, 0)
        assert BULK in bus.outgoing
        yield from bus.open_line()
        # The packet that was on its way to the first program is there still.
        assert (yield from bus.receive(BULK, 64)) == data[::-1][:64]
        yield from bus.send(BULK, data[::-1])
        assert (yield from bus.receive(BULK, 101)) == data

    firmware().run(host)


def begun_and_left(bus):
    """Part of a frame, of which some packets are taken and one still waits."""
    yield from bus.send(BULK, frame(96, seed=7)[:80], 40)


def test_a_line_opened_again_begins_a_new_frame(firmware):
    def host(bus):
        yield from bus.enumerate()
        for seed in range(3):
            yield from bus.open_line()
            data = frame(seed=seed)
            yield from bus.send(BULK, data, 50)
            assert (yield from bus.receive(BULK, 101)) == data[::-1]
            yield from begun_and_left(bus)
            yield from bus.control(0x21, 0x22, 0, 0)

    firmware().run(host)


@pytest.mark.parametrize("way", ["reset", "configuration", "cable"])
def test_a_device_that_is_reset_begins_a_new_frame(firmware, way):
    def host(bus):
        yield from bus.enumerate()
        yield from bus.open_line()
        yield from begun_and_left(bus)
        if way == "reset":
            yield from bus.reset()
        elif way == "cable":
            yield from bus.pull_out()
            yield from bus.plug_in()
        yield from bus.control(0, 9, 1)
        data = frame(seed=1)
        yield from bus.send(BULK, data)
        assert (yield from bus.receive(BULK, 101)) == data[::-1]
        # And once more while results wait to be fetched.
        yield from bus.send(BULK, data)
        for _ in range(5):
            yield
        if way == "cable":
            yield from bus.pull_out()
            yield from bus.plug_in()
        else:
            yield from bus.reset()
        yield from bus.control(0, 9, 1)
        yield from bus.send(BULK, data[::-1])
        assert (yield from bus.receive(BULK, 101)) == data

    firmware().run(host)


def test_endpoints_that_are_halted(firmware):
    def host(bus):
        yield from bus.enumerate()
        yield from bus.open_line()
        data = frame(50)
        # One packet each way, so that toggles are not at their beginning.
        yield from bus.send(BULK, data)
        assert (yield from bus.receive(BULK, 51)) == data[::-1]
        for endpoint, use in ((BULK, lambda: bus.send(BULK, data)), (IN | BULK, lambda: bus.receive(BULK, 1))):
            yield from bus.control(2, 3, 0, endpoint)
            assert (yield from bus.control(IN | 2, 0, 0, endpoint, 2)) == b"\x01\x00"
            yield from refused(use())
            yield from bus.control(2, 1, 0, endpoint)
            assert (yield from bus.control(IN | 2, 0, 0, endpoint, 2)) == b"\x00\x00"
        yield from bus.send(BULK, data)
        assert (yield from bus.receive(BULK, 51)) == data[::-1]

    firmware(50).run(host)


@pytest.mark.parametrize("function, dims", [(residual, RESIDUAL_DIMS), (convnet, CONVNET_DIMS)])
def test_a_network_behind_usb(function, dims, tmp_path):
    """The C that is exported, with its network: codes in, a label or all codes out, as NumPy has them."""
    program, out = quantize(traced(function, dims), {}, [{"x": images(40, dims)}]), tmp_path / "out"
    export(program, out, board="nrf52840")
    codes = program.encode(images(4, dims, seed=8))
    wanted = program.run(codes)
    expected = [w.astype(np.uint8).tobytes() if function is residual else w.tobytes() for w in wanted]

    def host(bus):
        yield from bus.enumerate()
        yield from bus.open_line()
        for code, result in zip(codes, expected):
            yield from bus.send(BULK, code.tobytes())
            assert (yield from bus.receive(BULK, len(result) + 1)) == result

    name = next(f.stem for f in out.glob("*.c") if f.with_suffix(".h").exists())
    ChipModel(build(out, ["serial_main.c", "usb_cdc.c", f"{name}.c"])).run(host)


@pytest.mark.skipif(not shutil.which("arm-none-eabi-gcc"), reason="needs arm-none-eabi-gcc (make tools)")
@pytest.mark.parametrize("board", ["nrf52840", "nrf52840-swd"])
def test_the_image_for_the_chip_has_no_warnings(board, tmp_path):
    program, out = quantize(traced(residual, RESIDUAL_DIMS), {}, [{"x": images(40, RESIDUAL_DIMS)}]), tmp_path / "out"
    export(program, out, board=board)
    warnings = "WARNINGS=-std=c99 -O2 -Wall -Wextra -pedantic -Werror"
    subprocess.run(
        ["make", "-s", "IMAGE=firmware", "MAIN=serial_main.c", "EXTRA=usb_cdc.c", warnings], cwd=out, check=True
    )
    assert (out / "firmware.elf").read_bytes()[:4] == b"\x7fELF"
