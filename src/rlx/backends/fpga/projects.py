"""What tools need beside the circuit: a Makefile for the open ones, projects for Vivado and Quartus."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from rlx.backends.fpga.parts import PARTS, Part

_MAKEFILE = Template("""\
# make check: simulate with Icarus. make lint: warnings of Verilator. make: a bitstream for $part.
SOURCES = $sources

$bitstream: $top.json
\t$placement
\t$packing

$top.json: $$(SOURCES)
\tyosys -q -l $top.log -p "read_verilog $flags -defer $$(SOURCES); $synthesis"

check: $$(SOURCES) ${name}_tb$ending
\tiverilog $standard -s ${name}_tb -o ${name}_tb.vvp $$(SOURCES) ${name}_tb$ending
\tvvp -n ${name}_tb.vvp

lint: $$(SOURCES)
\tverilator --lint-only -Wall --top-module ${name}_axis $$(SOURCES)

clean:
\trm -f ${name}_tb.vvp $top.json $top.log $top.asc $top.config $bitstream

.PHONY: check lint clean
""")

_VIVADO = Template("""\
# vivado -mode batch -source $name.tcl -tclargs PART; memory files are read from this folder.
set part [expr {$$argc > 0 ? [lindex $$argv 0] : "xc7a35tcpg236-1"}]
create_project -in_memory -part $$part
$reads
synth_design -top $top -part $$part -mode out_of_context
report_utilization
report_timing_summary
""")

_QUARTUS = Template("""\
# quartus_map $name; quartus_fit $name. Change the device to the one that is there.
set_global_assignment -name FAMILY "Cyclone V"
set_global_assignment -name DEVICE 5CSEMA5F31C6
set_global_assignment -name TOP_LEVEL_ENTITY $top
$reads
set_global_assignment -name SEARCH_PATH .
""")


def project_files(name: str, sources: Sequence[str], ending: str, part: Part | None) -> dict[str, str]:
    """File name -> text, for sources of a circuit."""
    chip, top = part or PARTS["up5k"], f"{name}_core"
    words = {"name": name, "top": top}
    system = ending == ".sv"
    return {
        "Makefile": _MAKEFILE.substitute(
            words,
            part=chip.about,
            sources=" ".join(sources),
            ending=ending,
            flags="-sv" if system else "",
            standard="-g2012" if system else "-g2005",
            synthesis=chip.synthesis.format(top=top),
            placement=chip.placement.format(top=top),
            packing=chip.packing.format(top=top),
            bitstream=chip.packing.format(top=top).split()[-1],
        ).replace("read_verilog  -defer", "read_verilog -defer"),
        f"{name}.tcl": _VIVADO.substitute(
            words, reads="\n".join(f"read_verilog {'-sv ' if system else ''}{s}" for s in sources)
        ),
        f"{name}.qsf": _QUARTUS.substitute(
            words,
            reads="\n".join(
                f"set_global_assignment -name {'SYSTEMVERILOG' if system else 'VERILOG'}_FILE {s}" for s in sources
            ),
        ),
    }
