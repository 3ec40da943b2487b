"""C programs around an exported network that read and write files of the host: runs, streams, learning.

They are the same on the host and in QEMU, where files are reached through semihosting: `host_files.h` has both forms.
"""

from __future__ import annotations

from string import Template

HOST_FILES = """\
/* Files of the host: through the debugger or QEMU on a core, through the library on the host itself. */
#ifndef HOST_FILES_H
#define HOST_FILES_H

#include <stdint.h>

#if defined(RLX_SEMIHOSTING)
typedef int32_t host_file;

static int32_t host_request(int32_t number, const void *block)
{
    register int32_t r0 __asm__("r0") = number;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static host_file host_open(const char *path, int32_t is_output)
{
    uint32_t block[3];
    block[0] = (uint32_t)path;
    block[1] = is_output ? 5u : 1u;
    block[2] = 0u;
    while (path[block[2]] != '\\0') {
        block[2]++;
    }
    return host_request(0x01, block);
}

static int32_t host_is_open(host_file file)
{
    return file >= 0;
}

/* Whether all bytes were read, or written. */
static int32_t host_transfer(host_file file, const void *data, uint32_t size, int32_t is_output)
{
    uint32_t block[3];
    block[0] = (uint32_t)file;
    block[1] = (uint32_t)data;
    block[2] = size;
    return host_request(is_output ? 0x05 : 0x06, block) == 0;
}

static void host_close(host_file file)
{
    (void)host_request(0x02, &file);
}
#else
#include <stdio.h>

typedef FILE *host_file;

static host_file host_open(const char *path, int32_t is_output)
{
    return fopen(path, is_output ? "wb" : "rb");
}

static int32_t host_is_open(host_file file)
{
    return file != NULL;
}

static int32_t host_transfer(host_file file, void *data, uint32_t size, int32_t is_output)
{
    return (is_output ? fwrite(data, 1, size, file) : fread(data, 1, size, file)) == size;
}

static void host_close(host_file file)
{
    (void)fclose(file);
}
#endif

#endif
"""

_MAIN = Template("""\
/* Reads inputs from a file, runs each, and writes the outputs: inputs.bin to outputs.bin. */
#include "$name.h"
#include "host_files.h"

static uint32_t arena[(${upper}_ARENA_BYTES + 3u) / 4u];

#if defined(RLX_COUNT)
/* The timer of the core: 24 bits that count down. */
static volatile uint32_t *const timer = (volatile uint32_t *)0xE000E010u;

#define PAINTED 8192u

/* Bytes below main's own that a run has written to, out of those that were painted before it. */
static uint32_t used_stack(volatile uint8_t *top)
{
    uint32_t depth = PAINTED;
    while (depth > 0u && top[-(int32_t)depth] == 0xa5u) {
        depth--;
    }
    return depth;
}
#endif

int main(void)
{
    host_file inputs = host_open("inputs.bin", 0), outputs = host_open("outputs.bin", 1);
#if defined(RLX_COUNT)
    host_file counts = host_open("figures.bin", 1);
    volatile uint8_t here = 0u;
    uint32_t n;
    timer[1] = 0xffffffu;
    timer[2] = 0u;
    timer[0] = 5u;
#endif
    uint32_t taken = ${upper}_INPUT_SIZE * (uint32_t)sizeof(${name}_input_t);
    uint32_t given = ${upper}_OUTPUT_SIZE * (uint32_t)sizeof(${name}_output_t);

    if (!host_is_open(inputs) || !host_is_open(outputs)) {
        return 2;
    }
    while (host_transfer(inputs, ${name}_input(arena), taken, 0)) {
#if defined(RLX_COUNT)
        uint32_t figures[2];
        for (n = 64u; n <= PAINTED; n++) {
            (&here)[-(int32_t)n] = 0xa5u;
        }
        figures[0] = timer[2];
        ${name}_run(arena);
        figures[0] = (figures[0] - timer[2]) & 0xffffffu;
        figures[1] = used_stack(&here);
        (void)host_transfer(counts, figures, 8u, 1);
#else
        ${name}_run(arena);
#endif
        if (!host_transfer(outputs, (void *)${name}_output(arena), given, 1)) {
            return 3;
        }
    }
    host_close(outputs);
    return 0;
}
""")

_STREAM_HEADER = Template("""\
/* $name over a stream: rows come in, and the network sees the last $rows of them. Generated; do not edit. */
#ifndef ${upper}_STREAM_H
#define ${upper}_STREAM_H

#include "$name.h"

/* One row of the input, and how many are pushed at a time. */
#define ${upper}_ROW_SIZE ${row}u
#define ${upper}_PUSHED_ROWS ${hop}u

/* What is kept from push to push; begin with `seen` = 0. */
struct ${name}_stream {
    uint32_t seen;
    ${name}_input_t rows[${rows}u * ${row}u];
};

/* Push rows; 1 if the network ran, which it does once it has seen $rows of them. */
int32_t ${name}_push(struct ${name}_stream *stream, void *arena, const ${name}_input_t *rows);

#endif
""")

_STREAM = Template("""\
/* $name over a stream. Generated; do not edit. */
#include "${name}_stream.h"

int32_t ${name}_push(struct ${name}_stream *stream, void *arena, const ${name}_input_t *rows)
{
    ${name}_input_t *input = ${name}_input(arena);
    uint32_t i, most = ${rows}u - ${hop}u, kept = stream->seen > most ? most : stream->seen;
    uint32_t dropped = (stream->seen - kept) * ${row}u;

    for (i = 0u; i < kept * ${row}u; i++) {
        stream->rows[i] = stream->rows[i + dropped];
    }
    for (i = 0u; i < ${hop}u * ${row}u; i++) {
        stream->rows[kept * ${row}u + i] = rows[i];
    }
    stream->seen = kept + ${hop}u;
    if (stream->seen < ${rows}u) {
        return 0;
    }
    for (i = 0u; i < ${rows}u * ${row}u; i++) {
        input[i] = stream->rows[i];
    }
    ${name}_run(arena);
    return 1;
}
""")

_STREAM_MAIN = Template("""\
/* Pushes rows from inputs.bin, and writes what the network says of each window to outputs.bin. */
#include "${name}_stream.h"
#include "host_files.h"

static uint32_t arena[(${upper}_ARENA_BYTES + 3u) / 4u];
static struct ${name}_stream stream;
static ${name}_input_t rows[${upper}_PUSHED_ROWS * ${upper}_ROW_SIZE];

int main(void)
{
    host_file inputs = host_open("inputs.bin", 0), outputs = host_open("outputs.bin", 1);
    uint32_t given = ${upper}_OUTPUT_SIZE * (uint32_t)sizeof(${name}_output_t);

    if (!host_is_open(inputs) || !host_is_open(outputs)) {
        return 2;
    }
    while (host_transfer(inputs, rows, (uint32_t)sizeof(rows), 0)) {
        if (${name}_push(&stream, arena, rows) && !host_transfer(outputs, (void *)${name}_output(arena), given, 1)) {
            return 3;
        }
    }
    host_close(outputs);
    return 0;
}
""")


def main_program(name: str) -> str:
    return _MAIN.substitute(name=name, upper=name.upper())


def stream_files(name: str, rows: int, row: int, hop: int) -> dict[str, str]:
    """What a stream of rows needs beside the network: windows of `rows` rows of `row` codes, `hop` new ones each."""
    words = {"name": name, "upper": name.upper(), "rows": rows, "row": row, "hop": hop}
    return {
        f"{name}_stream.h": _STREAM_HEADER.substitute(words),
        f"{name}_stream.c": _STREAM.substitute(words),
        "stream_main.c": _STREAM_MAIN.substitute(words),
    }
