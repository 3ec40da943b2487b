"""A network as firmware behind a serial line: the codes of an input come in as raw bytes, and the result goes back.

There is no header and no checksum: INPUT_SIZE codes are answered by one byte, the label, or by all codes of a result.
That is what the Rust RLX's firmware for TinyConv speaks, 784 bytes for a digit. The line is USB on a board that has it
(a CDC-ACM device, 16c0:27dd), or the UART of the part. A line that is opened anew drops the frame that was begun.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from string import Template

from rlx.backends.cortex_m.project import Core, Region
from rlx.errors import RlxError

# The memory of an nRF52840: behind the bootloader of its vendor, or all of it where a debugger writes it.
BOARDS = {
    "nrf52840": (Region(0x1000, 972), Region(0x20000000, 256)),
    "nrf52840-swd": (Region(0x0, 1024), Region(0x20000000, 256)),
}

LINES = ("uart", "usb")

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

static int32_t serial_get(void)
{
    while (SERIAL(0x108u) == 0u) {
    }
    SERIAL(0x108u) = 0u;
    return (int32_t)(SERIAL(0x518u) & 0xffu);
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

static int32_t serial_get(void)
{
    while ((SERIAL(4u) & 2u) == 0u) {
    }
    return (int32_t)(SERIAL(0u) & 0xffu);
}

static void serial_put(uint8_t byte)
{
    while ((SERIAL(4u) & 1u) != 0u) {
    }
    SERIAL(0u) = byte;
}
"""

_UART = Template("""\
#ifndef SERIAL_H
#define SERIAL_H

#include <stdint.h>

/* What serial_get gives where a line was opened anew, which a UART does not know. */
#define SERIAL_BEGINS_ANEW (-1)

$functions
static void serial_flush(void)
{
}

#endif
""")

_USB = """\
/* A serial line over USB; usb_cdc.c has it. */
#ifndef SERIAL_H
#define SERIAL_H

#include <stdint.h>

/* What serial_get gives once after the host has opened the line, or has reset the device. */
#define SERIAL_BEGINS_ANEW (-1)

void serial_start(void);
/* Answers what the host has asked; the others call it while they wait. */
void serial_poll(void);
int32_t serial_get(void);
void serial_put(uint8_t byte);
void serial_flush(void);

#endif
"""

_STRINGS = Template("""\
/* The texts by which a host tells this device from others with its numbers, 16c0:27dd. */
#define USB_MANUFACTURER "rlx"
#define USB_PRODUCT "$name"
""")

_MAIN = Template("""\
/* Firmware: codes of an input as raw bytes in, the result out; $make */
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
            int32_t byte = serial_get();

            while (byte == SERIAL_BEGINS_ANEW) {
                n = 0;
                byte = serial_get();
            }
            input[n] = (uint8_t)byte;
        }
        ${name}_run(arena);
        for (n = 0; n < ${sent}; n++) {
            serial_put(output[n]);
        }
        serial_flush();
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


def firmware_files(name: str, core: Core, is_label: bool, board: str | None, line: str) -> dict[str, str]:
    """serial_main.c, serial.h, and where the line is USB, what drives that."""
    upper = name.upper()
    sent = "1u" if is_label else f"{upper}_OUTPUT_SIZE * (uint32_t)sizeof({name}_output_t)"
    made = {"name": name, "upper": upper, "sent": sent, "make": "make IMAGE=firmware MAIN=serial_main.c"}
    if line == "usb":
        if board is None:
            raise RlxError(f"cortex-m: serial=usb needs a board with USB: board={' or board='.join(BOARDS)}")
        driver = files("rlx.backends.cortex_m").joinpath("board")
        made["make"] += " EXTRA=usb_cdc.c"
        return {
            "serial.h": _USB,
            "serial_main.c": _MAIN.substitute(made),
            "usb_strings.h": _STRINGS.substitute(name=name),
            **{f: driver.joinpath(f).read_text(encoding="ascii") for f in ("usb_cdc.c", "usb_registers.h")},
        }
    if board is not None:
        # Pins 6 and 8 of port 0, as on Nordic's own board.
        functions = _NRF.substitute(tx=6, rx=8)
    elif core.name == "cortex-m0plus":
        functions = _NRF.substitute(tx=24, rx=25)
    elif core.name in ("cortex-m3", "cortex-m4", "cortex-m7"):
        functions = _CMSDK
    else:
        raise RlxError(
            f"cortex-m: the UART of {core.machine} ({core.name}) is not known; serial works for m0plus to m7"
        )
    return {"serial.h": _UART.substitute(functions=functions), "serial_main.c": _MAIN.substitute(made)}
