"""What stands beside the C of a program: start-up code, linker script, Makefile, CMake file, for each core."""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import NamedTuple

from rlx.backends.cortex_m.host_programs import HOST_FILES, main_program
from rlx.errors import RlxError


class Region(NamedTuple):
    """Where memory begins, and how many KiB there are."""

    origin: int
    length: int


_FLASH, _RAM = Region(0x00000000, 512), Region(0x20000000, 256)


@dataclass(frozen=True)
class Core:
    """A core: how compilers are told of it, the machine of QEMU that has it, and the memory of that machine."""

    name: str
    flags: str
    triple: str
    machine: str
    # How the compiler of ziglang is told of it.
    zig: str
    has_fpu: bool = False
    flash: Region = _FLASH
    ram: Region = _RAM


CORES = {
    c.name: c
    for c in (
        # Its instructions are the Cortex-M0's, which this machine has.
        Core(
            "cortex-m0plus",
            "-mcpu=cortex-m0plus -mthumb",
            "thumbv6m-unknown-none-eabi",
            "microbit",
            "-target thumb-freestanding-eabi -mcpu=cortex_m0plus",
            flash=Region(0x00000000, 256),
            ram=Region(0x20000000, 16),
        ),
        Core(
            "cortex-m3",
            "-mcpu=cortex-m3 -mthumb",
            "thumbv7m-unknown-none-eabi",
            "mps2-an385",
            "-target thumb-freestanding-eabi -mcpu=cortex_m3",
        ),
        Core(
            "cortex-m4",
            "-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16",
            "thumbv7em-unknown-none-eabihf",
            "mps2-an386",
            "-target thumb-freestanding-eabihf -mcpu=cortex_m4+vfp4d16sp",
            True,
        ),
        Core(
            "cortex-m7",
            "-mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-sp-d16",
            "thumbv7em-unknown-none-eabihf",
            "mps2-an500",
            "-target thumb-freestanding-eabihf -mcpu=cortex_m7+vfp4d16sp",
            True,
        ),
        # It starts in the secure state, which sees its memory at these addresses.
        Core(
            "cortex-m33",
            "-mcpu=cortex-m33 -mthumb -mfloat-abi=hard -mfpu=fpv5-sp-d16",
            "thumbv8m.main-unknown-none-eabihf",
            "mps2-an505",
            "-target thumb-freestanding-eabihf -mcpu=cortex_m33+vfp4d16sp",
            True,
            flash=Region(0x10000000, 512),
            ram=Region(0x38000000, 256),
        ),
        Core(
            "cortex-m55",
            "-mcpu=cortex-m55 -mthumb -mfloat-abi=hard",
            "thumbv8.1m.main-unknown-none-eabihf",
            "mps3-an547",
            "-target thumb-freestanding-eabihf -mcpu=cortex_m55+mve",
            True,
        ),
    )
}


def core_named(name: str) -> Core:
    if name not in CORES:
        raise RlxError(f"cortex-m: there is no core {name!r}; known: {', '.join(CORES)}")
    return CORES[name]


_STARTUP = Template("""\
/* From reset to main, and from main to the end of QEMU with its exit code. */
#include <stddef.h>
#include <stdint.h>

extern uint32_t data_start, data_end, data_source, bss_start, bss_end, stack_top;
int main(void);
void reset(void);
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int value, size_t n);

/* The compiler may call these for copies; there is no library. */
void *memcpy(void *to, const void *from, size_t n)
{
    uint8_t *t = (uint8_t *)to;
    const uint8_t *f = (const uint8_t *)from;
    while (n-- > 0u) {
        *t++ = *f++;
    }
    return to;
}

void *memset(void *to, int value, size_t n)
{
    uint8_t *t = (uint8_t *)to;
    while (n-- > 0u) {
        *t++ = (uint8_t)value;
    }
    return to;
}

static void finish(uint32_t status)
{
    uint32_t block[2];
    register int32_t r0 __asm__("r0") = 0x20;
    register const void *r1 __asm__("r1") = block;
    block[0] = 0x20026u;
    block[1] = status;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    for (;;) {
    }
}

void reset(void)
{
    uint32_t *to, *from = &data_source;

$fpu    for (to = &data_start; to < &data_end; to++) {
        *to = *from++;
    }
    for (to = &bss_start; to < &bss_end; to++) {
        *to = 0u;
    }
    finish((uint32_t)main());
}

static void fault(void)
{
    finish(99u);
}

__attribute__((section(".vectors"), used)) static void (*const vectors[16])(void) = {
    (void (*)(void))(uintptr_t)&stack_top, reset, fault, fault, fault, fault, fault, 0, 0, 0, 0, fault, fault, 0, fault,
    fault
};
""")

_FPU = """\
    /* The coprocessors of floats and vectors are off after reset, and compilers copy with them. */
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20;
    __asm__ volatile("dsb\\n\\tisb");
"""

_LINKER = Template("""\
/* The memory of $where; change origins and lengths for another part. */
MEMORY
{
    FLASH (rx) : ORIGIN = $flash
    RAM (rwx) : ORIGIN = $ram
}
ENTRY(reset)
SECTIONS
{
    .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) . = ALIGN(4); } > FLASH
    .ARM.exidx : { *(.ARM.exidx*) } > FLASH
    data_source = LOADADDR(.data);
    .data : { data_start = .; *(.data*) . = ALIGN(4); data_end = .; } > RAM AT> FLASH
    .bss (NOLOAD) : { bss_start = .; *(.bss*) *(COMMON) . = ALIGN(4); bss_end = .; } > RAM
    stack_top = ORIGIN(RAM) + LENGTH(RAM);
}
""")

_MAKEFILE = Template("""\
# make host: runs here. make: an image for the core. make qemu: runs it; both read inputs.bin and write outputs.bin.
# Other programs around the network: make qemu IMAGE=stream MAIN=stream_main.c EXTRA=${name}_stream.c
CROSS ?= arm-none-eabi-
WARNINGS = -std=c99 -O2 -Wall -Wextra -pedantic
CORE = $flags
DEFINES =
IMAGE = $name
MAIN = main.c
EXTRA =

$$(IMAGE).elf: $code $$(MAIN) $$(EXTRA) startup.c link.ld $name.h host_files.h
\t$$(CROSS)gcc $$(WARNINGS) $$(CORE) $$(DEFINES) -DRLX_SEMIHOSTING -ffreestanding -ffunction-sections -nostdlib \\
\t    -T link.ld -Wl,--gc-sections -Wl,-z,noexecstack -Wl,-Map=$$(IMAGE).map $code $$(MAIN) $$(EXTRA) startup.c \\
\t    -lgcc -o $$@

host: $code $$(MAIN) $$(EXTRA) $name.h host_files.h
\t$host

qemu: $$(IMAGE).elf
\tqemu-system-arm -M $machine -nographic -semihosting-config enable=on,target=native -kernel $$(IMAGE).elf

size: $$(IMAGE).elf
\t$$(CROSS)size $$(IMAGE).elf

clean:
\trm -f $$(IMAGE) $$(IMAGE).elf $$(IMAGE).map outputs.bin

.PHONY: host qemu size clean
""")

_CMAKE = Template("""\
# A library for a firmware's own project, with whatever compiler and core its toolchain file names:
#     add_subdirectory(this folder)   target_link_libraries(firmware $name)
cmake_minimum_required(VERSION 3.13)
project($name C)

add_library($name STATIC $code)
set_target_properties($name PROPERTIES LINKER_LANGUAGE C)
target_include_directories($name PUBLIC $${CMAKE_CURRENT_SOURCE_DIR})
set_target_properties($name PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)

$alone""")


_CMAKE_ALONE = Template("""\
# Alone, it also builds the program that reads inputs.bin and writes outputs.bin on this machine.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR AND NOT CMAKE_CROSSCOMPILING)
    add_executable(${name}_host main.c)
    target_link_libraries(${name}_host $name)
endif()
""")


def _linker(core: Core) -> str:
    flash, ram = (f"0x{r.origin:08x}, LENGTH = {r.length}K" for r in (core.flash, core.ram))
    return _LINKER.substitute(where=f"QEMU's {core.machine}", flash=flash, ram=ram)


def project_files(name: str, core: Core, is_object: bool = False) -> dict[str, str]:
    """File name -> text, for a program of this name on a core, whose functions are in C, or in an object file."""
    alone = "" if is_object else _CMAKE_ALONE.substitute(name=name)
    if is_object:
        made = {"code": f"{name}.o", "host": "@echo 'the object is for the core alone; make qemu runs it'; false"}
    else:
        made = {"code": f"{name}.c", "host": f"$(CC) $(WARNINGS) {name}.c $(MAIN) $(EXTRA) -o $(IMAGE) && ./$(IMAGE)"}
    return {
        "main.c": main_program(name),
        "host_files.h": HOST_FILES,
        "startup.c": _STARTUP.substitute(fpu=_FPU if core.has_fpu else ""),
        "link.ld": _linker(core),
        "CMakeLists.txt": _CMAKE.substitute(name=name, code=made["code"], alone=alone),
        "Makefile": _MAKEFILE.substitute(name=name, flags=core.flags, machine=core.machine, **made),
    }
