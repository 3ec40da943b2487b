"""A network as firmware behind a serial line: the codes of an input come in as raw bytes, and the result goes back.

There is no header and no checksum: INPUT_SIZE codes are answered by one byte, the label, or by all codes of a result.
That is what the Rust RLX's firmware for TinyConv speaks, 784 bytes for a digit, there over USB; here it is the UART of
the part, which boards lead to USB by their debugger.
"""

from __future__ import annotations

from dataclasses import replace
from string import Template

from rlx.backends.cortex_m.project import Core, Region
from rlx.errors import RlxError

# The memory of an nRF52840: behind the bootloader of its vendor, or all of it where a debugger writes it.
BOARDS = {
    "nrf52840": (Region(0x1000, 972), Region(0x20000000, 256)),
    "nrf52840-swd": (Region(0x0, 1024), Region(0x20000000, 256)),
}

_NRF = Template("""\
/* The UART of Nordic's nRF51 and nRF52, 115200 baud. */
#define SERIAL(offset) (*(volatile uint32_t *)(0x40002000u + (offset)))

static void serial_start(void)
{
    SERIAL(0x50cu) = ${tx}u; /* the pins of the board */
    SERIAL(0x514u) = ${rx}u;
    SERIAL(0x524u) = 0x01d7e000u;
    SERIAL(0x500u) = 4u;
    SERIAL(0x000u) = 1u;
    SERIAL(0x008u) = 1u;
}

static uint8_t serial_get(void)
{
    while (SERIAL(0x108u) == 0u) {
    }
    SERIAL(0x108u) = 0u;
    return (uint8_t)SERIAL(0x518u);
}

static void serial_put(uint8_t byte)
{
    SERIAL(0x11cu) = 0u;
    SERIAL(0x51cu) = byte;
    while (SERIAL(0x11cu) == 0u) {
    }
}
""")

_CMSDK = """\
/* The UART of Arm's boards: data, state, control, and a divisor of 16 or more. */
#define SERIAL(offset) (*(volatile uint32_t *)(0x40004000u + (offset)))

static void serial_start(void)
{
    SERIAL(16u) = 16u;
    SERIAL(8u) = 3u;
}

static uint8_t serial_get(void)
{
    while ((SERIAL(4u) & 2u) == 0u) {
    }
    return (uint8_t)SERIAL(0u);
}

static void serial_put(uint8_t byte)
{
    while ((SERIAL(4u) & 1u) != 0u) {
    }
    SERIAL(0u) = byte;
}
"""

_MAIN = Template("""\
/* Firmware: codes of an input as raw bytes in, the result out; make IMAGE=firmware MAIN=serial_main.c */
#include "$name.h"
#include "serial.h"

static uint32_t arena[(${upper}_ARENA_BYTES + 3u) / 4u];

int main(void)
{
    uint32_t n;

    serial_start();
    for (;;) {
        uint8_t *input = (uint8_t *)${name}_input(arena);
        const uint8_t *output = (const uint8_t *)${name}_output(arena);

        for (n = 0; n < ${upper}_INPUT_SIZE * (uint32_t)sizeof(${name}_input_t); n++) {
            input[n] = serial_get();
        }
        ${name}_run(arena);
        for (n = 0; n < ${sent}; n++) {
            serial_put(output[n]);
        }
    }
}
""")


def board_named(name: str, core: Core) -> Core:
    """A core with the memory of a board."""
    if name not in BOARDS:
        raise RlxError(f"cortex-m: there is no board {name!r}; known: {', '.join(BOARDS)}")
    if core.name != "cortex-m4":
        raise RlxError(f"cortex-m: {name} has a cortex-m4, got cpu={core.name}")
    flash, ram = BOARDS[name]
    return replace(core, flash=flash, ram=ram)


def firmware_files(name: str, core: Core, is_label: bool, board: str | None) -> dict[str, str]:
    """serial.h for the UART of the part, and serial_main.c."""
    if board is not None:
        # Pins 6 and 8 of port 0, as on Nordic's own board.
        serial = _NRF.substitute(tx=6, rx=8)
    elif core.name == "cortex-m0plus":
        serial = _NRF.substitute(tx=24, rx=25)
    elif core.name in ("cortex-m3", "cortex-m4", "cortex-m7"):
        serial = _CMSDK
    else:
        raise RlxError(
            f"cortex-m: the UART of {core.machine} ({core.name}) is not known; serial works for m0plus to m7"
        )
    upper = name.upper()
    sent = "1u" if is_label else f"{upper}_OUTPUT_SIZE * (uint32_t)sizeof({name}_output_t)"
    guard = f"#ifndef SERIAL_H\n#define SERIAL_H\n\n#include <stdint.h>\n\n{serial}\n#endif\n"
    return {"serial.h": guard, "serial_main.c": _MAIN.substitute(name=name, upper=upper, sent=sent)}
