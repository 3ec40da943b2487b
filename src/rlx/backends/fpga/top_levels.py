"""The top levels of a circuit: NAME_core with ready/valid streams of codes, NAME_axis with AXI-Stream around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template

from rlx.backends.fpga.circuit import Circuit
from rlx.backends.fpga.layers import Layer, queue_words
from rlx.backends.fpga.ranges import index_bits


def top_module(circuit: Circuit) -> str:
    """The module that has a stream of codes in and one of results out."""
    lines = [
        f"// An integer program: frames of {circuit.program.input.size} codes in, {circuit.program.result.size} out.",
        f"module {circuit.name}_core (",
        "    input wire clk,",
        "    input wire rst,",
        "    input wire in_valid,",
        "    output wire in_ready,",
        f"    input wire [{circuit.in_bits - 1}:0] in_data,",
        "    output wire out_valid,",
        "    input wire out_ready,",
        f"    output wire [{circuit.out_bits - 1}:0] out_data",
        ");",
    ]
    readers = _readers(circuit)
    lines += _stream("v0", circuit.in_bits) + _sent("v0", readers[0])
    lines += ["    assign v0_valid = in_valid;", "    assign v0_data = in_data;", "    assign in_ready = v0_ready;", ""]
    for layer in circuit.layers:
        lines += [*_instance(circuit, layer, readers), ""]
    last = f"v{circuit.number_of(circuit.layers[-1])}"
    lines += [f"    assign out_valid = {last}_valid;", f"    assign out_data = {last}_data;"]
    lines += [f"    assign {last}_ready = out_ready;", "endmodule"]
    return "\n".join(lines) + "\n"


def _readers(circuit: Circuit) -> dict[int, list[str]]:
    """Value -> the names of the streams that its readers have of it."""
    found: dict[int, list[str]] = {n: [] for n in (0, *(circuit.number_of(layer) for layer in circuit.layers))}
    for layer in circuit.layers:
        for place, i in enumerate(layer.inputs):
            found[i].append(f"{layer.name}_in{place}")
    return found


def _stream(name: str, bits: int) -> list[str]:
    return [f"    wire {name}_valid, {name}_ready;", f"    wire [{bits - 1}:0] {name}_data;"]


def _sent(source: str, readers: Sequence[str]) -> list[str]:
    """The stream to each reader: a code is taken when all of them can take it."""
    lines = []
    for reader in readers:
        others = [f"{r}_ready" for r in readers if r != reader]
        lines.append(f"    wire {reader}_ready;")
        lines.append(f"    wire {reader}_valid = {' && '.join([f'{source}_valid', *others])};")
    if readers:
        lines.append(f"    assign {source}_ready = {' && '.join(f'{r}_ready' for r in readers)};")
    return lines


def _instance(circuit: Circuit, layer: Layer, readers: Mapping[int, Sequence[str]]) -> list[str]:
    value = f"v{circuit.number_of(layer)}"
    lines = [f"    // {layer.out.name!r}: {layer.kind} to {'x'.join(map(str, layer.out.dims)) or 'one number'}"]
    lines += _stream(value, layer.out_bits) + _sent(value, readers[circuit.number_of(layer)])
    pins: dict[str, str] = {}
    for place, i in enumerate(layer.inputs):
        stream, data = f"{layer.name}_in{place}", f"v{i}_data"
        if layer.joins:
            bits, words = circuit.bits_of(i), queue_words(circuit.program.values[i])
            queue = f"{stream}_queued"
            lines += _stream(queue, bits)
            lines += _written(
                "rlx_queue",
                f"{stream}_queue",
                {"BITS": bits, "WORDS": words, "ADDRESS_BITS": index_bits(words), "COUNT_BITS": index_bits(words + 1)},
                _ports("in", stream, data) | _ports("out", queue),
            )
            stream, data = queue, f"{queue}_data"
        prefix = ("a", "b")[place] if layer.joins else "in"
        pins |= _ports(prefix, stream, data)
    return lines + _written(layer.module, layer.name, layer.parameters, pins | _ports("out", value))


def _ports(prefix: str, stream: str, data: str | None = None) -> dict[str, str]:
    return {
        f"{prefix}_valid": f"{stream}_valid",
        f"{prefix}_ready": f"{stream}_ready",
        f"{prefix}_data": data or f"{stream}_data",
    }


def _written(module: str, name: str, parameters: Mapping[str, int | str], pins: Mapping[str, str]) -> list[str]:
    values = [f'.{k}("{v}")' if isinstance(v, str) else f".{k}({v})" for k, v in parameters.items()]
    pinned = [f".{k}({v})" for k, v in {"clk": "clk", "rst": "rst", **pins}.items()]
    return [
        f"    {module} #(",
        *_wrapped(values),
        f"    ) {name} (",
        *_wrapped(pinned),
        "    );",
    ]


def _wrapped(items: Sequence[str], width: int = 110) -> list[str]:
    lines, line = [], ""
    for n, item in enumerate(items):
        item += "," if n < len(items) - 1 else ""
        if line and len(line) + len(item) + 9 > width:
            lines.append(f"        {line}")
            line = ""
        line = f"{line} {item}" if line else item
    return [*lines, f"        {line}"]


_AXIS = Template("""\
// AXI-Stream around ${name}_core: one code per transfer, and `last` on the last one of a frame. A frame whose `last`
// comes elsewhere sets `framing_error` until reset, and frames are counted on regardless.
module ${name}_axis (
    input wire aclk,
    input wire aresetn,
    input wire s_axis_tvalid,
    output wire s_axis_tready,
    input wire [$in_high:0] s_axis_tdata,
    input wire s_axis_tlast,
    output wire m_axis_tvalid,
    input wire m_axis_tready,
    output wire [$out_high:0] m_axis_tdata,
    output wire m_axis_tlast,
    output reg framing_error
);
    wire at_end, unused_at_start, unused_at_first;
    wire [$data_high:0] data;
    rlx_counter #(.COUNT($in_size)) count_in (
        .clk(aclk), .clear(!aresetn), .step(s_axis_tvalid && s_axis_tready), .at_first(unused_at_start),
        .at_last(at_end)
    );
    rlx_counter #(.COUNT($out_size)) count_out (
        .clk(aclk), .clear(!aresetn), .step(m_axis_tvalid && m_axis_tready), .at_first(unused_at_first),
        .at_last(m_axis_tlast)
    );
    always @(posedge aclk)
        if (!aresetn) framing_error <= 1'b0;
        else if (s_axis_tvalid && s_axis_tready && s_axis_tlast != at_end) framing_error <= 1'b1;

    ${name}_core core (
        .clk(aclk), .rst(!aresetn), .in_valid(s_axis_tvalid), .in_ready(s_axis_tready), .in_data(s_axis_tdata),
        .out_valid(m_axis_tvalid), .out_ready(m_axis_tready), .out_data(data)
    );
    assign m_axis_tdata = $out_data;
endmodule
""")


def axis_module(circuit: Circuit) -> str:
    """AXI-Stream: data in whole bytes, codes with their sign, labels with zeros above them."""
    out_bytes = -(-circuit.out_bits // 8)
    spare = 8 * out_bytes - circuit.out_bits
    return _AXIS.substitute(
        name=circuit.name,
        in_high=circuit.in_bits - 1,
        out_high=8 * out_bytes - 1,
        data_high=circuit.out_bits - 1,
        in_size=circuit.program.input.size,
        out_size=circuit.program.result.size,
        out_data=f"{{{spare}'b0, data}}" if spare else "data",
    )
