"""A measured suite as a table, as JSON, and as a picture."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rlx.bench.driver import BenchResult, CaseResult, Timing
from rlx.bench.engines import OURS, is_ours
from rlx.bench.limits import Limits
from rlx.bench.suites import SUITES, Case
from rlx.errors import RlxError

FORMAT_VERSION = 2


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """
    >>> geometric_mean([2.0, None, 8.0])
    4.0
    """
    logs = [math.log(v) for v in values if v is not None]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def duration(seconds: float | None) -> str:
    """
    >>> duration(0.00123), duration(12e-6), duration(2.5), duration(None)
    ('1.23 ms', '12.0 us', '2.50 s', '-')
    """
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds / size >= 100 else f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def peers_of(result: BenchResult) -> list[str]:
    """Peers that were measured in at least one case."""
    return [n for n in result.versions if not is_ours(n) and any(c.ratio(n) is not None for c in result.cases)]


def own_rows(result: BenchResult) -> list[tuple[CaseResult, str, str]]:
    """A case, an engine of ours and what to call them, for every row of a table."""
    engines = [n for n in result.versions if is_ours(n)]
    return [
        (case, name, case.case.name if name == OURS else f"{case.case.name}, {name}")
        for case in result.cases
        for name in engines
        if name in case.timings
    ]


def share_of_limit(timing: Timing) -> str:
    return f"{timing.limit / timing.seconds:.0%}" if timing.seconds and timing.limit else "-"


def table(result: BenchResult) -> str:
    """For every case: our time, the best peer, and how many times as long each peer takes."""
    peers = peers_of(result)
    head = ["case", OURS, "best peer", "ratio", *peers, "of limit"]
    rows = [_row(*row, peers) for row in own_rows(result)]
    for group in dict.fromkeys(c.case.group for c in result.cases):
        members = [c for c in result.cases if c.case.group == group]
        best = geometric_mean(c.ratio(c.best_peer) for c in members)
        if len(members) > 1 and best is not None:
            means = (times(geometric_mean(c.ratio(p) for c in members)) for p in peers)
            rows.append([f"{group}: mean", "", "", times(best), *means, ""])
    return "\n".join([*aligned([head, *rows]), "", *notes(result)])


def _row(case: CaseResult, engine: str, title: str, peers: Sequence[str]) -> list[str]:
    timing, best = case.timings[engine], case.best_peer
    time = duration(timing.seconds) if timing.seconds else timing.problem
    ratios = [times(case.ratio(p, engine)) for p in (best, *peers)]
    return [title, time, best or "-", *ratios, share_of_limit(timing)]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, the first column to the left and all others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = [str.ljust, *([str.rjust] * (len(widths) - 1))]
    return ["  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths)).rstrip() for row in rows]


def notes(result: BenchResult) -> list[str]:
    """What was measured, on what, and what is missing."""
    lines = [f"{machine()}; {result.threads} threads"]
    lines.append(
        f"limits: {result.limits.flops / 1e9:.0f} Gflop/s and {result.limits.bandwidth / 1e9:.1f} GB/s read, "
        "measured by rlx's own kernels; more than 100 % of a limit means that data stayed in caches"
    )
    lines.append("ratios: median over rounds in which both ran; above 1 rlx is faster")
    lines += SUITES[result.suite].notes if result.suite in SUITES else ()
    lines += _cosines(result)
    # "llama.cpp Q8_0" is llama.cpp.
    versions = {name.split(" ")[0]: version for name, version in result.versions.items()}
    lines.append("versions: " + ", ".join(f"{n} {v}" for n, v in versions.items()))
    if result.load_before > 0.3:
        lines.append(f"others used the machine (load {result.load_before:.1f} at the start): the numbers are noisy")
    lines += [f"not measured: {name} ({reason})" for name, reason in result.missing.items()]
    seen = set()
    for case in result.cases:
        for name, timing in case.timings.items():
            if timing.problem and (name, timing.problem) not in seen:
                seen.add((name, timing.problem))
                lines.append(f"not measured: {name} on {case.case.name} ({timing.problem})")
    return lines


def _cosines(result: BenchResult) -> list[str]:
    """How close vectors are to the exact ones, where a suite measures that, for its first case."""
    if result.suite not in SUITES or SUITES[result.suite].family != "encoders" or not result.cases:
        return []
    errors = {n: t.error for n, t in result.cases[0].timings.items() if n != OURS}
    found = [f"{n} {1 - error:.6f}" for n, error in errors.items() if error is not None]
    return [f"mean cosine to rlx in f32: {', '.join(found)}"] if found else []


def machine() -> str:
    """The processor and the system, without names that belong to a place."""
    model = platform.machine()
    try:
        with Path("/proc/cpuinfo").open() as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    from rlx.kernels.machines import host

    return (
        f"{model}, {os.cpu_count()} processors, {host().name}, {platform.system()}, Python {platform.python_version()}"
    )


def to_json(result: BenchResult) -> dict[str, Any]:
    return {
        "version": FORMAT_VERSION,
        "suite": result.suite,
        "machine": machine(),
        "threads": result.threads,
        "load_before": result.load_before,
        "limits": result.limits._asdict(),
        "versions": dict(result.versions),
        "missing": dict(result.missing),
        "cases": [
            {
                "name": c.case.name,
                "group": c.case.group,
                "program": c.case.program,
                "sizes": dict(c.case.sizes),
                "best_peer": c.best_peer,
                "ratio": c.ratio(c.best_peer),
                "engines": {
                    n: {**t._asdict(), "rounds": list(t.rounds), "ratio": c.ratio(n)} for n, t in c.timings.items()
                },
            }
            for c in result.cases
        ],
    }


def from_json(document: Mapping[str, Any]) -> BenchResult:
    """The result that `to_json` described."""
    if document["version"] != FORMAT_VERSION:
        raise RlxError(f"bench: version {FORMAT_VERSION} of the JSON is read, got {document['version']}; measure again")
    cases = []
    for c in document["cases"]:
        timings = {
            n: Timing(
                t["seconds"],
                tuple(t["rounds"]),
                t["first_call"],
                t["error"],
                t["problem"],
                t["limit"],
                t.get("memory"),
            )
            for n, t in c["engines"].items()
        }
        cases.append(CaseResult(Case(c["name"], c["group"], c["program"], c["sizes"]), timings))
    return BenchResult(
        document["suite"],
        document["threads"],
        Limits(**document["limits"]),
        document["versions"],
        document["missing"],
        tuple(cases),
        document["load_before"],
    )


_COLOURS = ("#c2410c", "#0e7490", "#7c3aed", "#15803d", "#b91c1c", "#a16207", "#475569")
_STYLE = """
.rlx{--ink:#1d2433;--faint:#68728a;--line:#d5dae3}
@media (prefers-color-scheme:dark){.rlx{--ink:#e8ebf2;--faint:#9aa4b8;--line:#3a4457}}
.rlx text{font:12px ui-sans-serif,system-ui,sans-serif;fill:var(--ink)} .rlx .small{font-size:10.5px;fill:var(--faint)}
.rlx line{stroke:var(--line)} .rlx .one{stroke:var(--ink);stroke-width:1.5}
"""


def plot(result: BenchResult) -> str:
    """One SVG image: for every case, how many times as long each peer takes as rlx, on a logarithmic axis."""
    peers = peers_of(result)
    ratios = [r for c in result.cases for p in peers if (r := c.ratio(p)) is not None]
    low, high = min([0.5, *ratios]), max([2.0, *ratios])
    left, width, line = 290.0, 560.0, 22.0
    height = 70.0 + line * len(result.cases) + 40

    def x(ratio: float) -> float:
        return left + width * math.log(ratio / low) / math.log(high / low)

    parts = [_words(16, 24, f"rlx bench {result.suite}: times as long as rlx, {result.threads} threads", "")]
    for number, peer in enumerate(peers):
        at = 16 + number * 140
        parts.append(_dot(at + 5, 40, _colour(number), peer) + _words(at + 14, 44, peer, "small"))
    bottom = 60 + line * len(result.cases)
    for tick in _ticks(low, high):
        css = "one" if tick == 1 else ""
        parts.append(f'<line class="{css}" x1="{x(tick):.1f}" y1="58" x2="{x(tick):.1f}" y2="{bottom:.0f}"/>')
        parts.append(_words(x(tick), bottom + 16, f"{tick:g}x", "small", "middle"))
    for row, case in enumerate(result.cases):
        y = 72 + row * line
        parts.append(_words(left - 12, y + 4, case.case.name, "", "end"))
        for number, peer in enumerate(peers):
            ratio = case.ratio(peer)
            if ratio is not None:
                tip = f"{case.case.name}: {peer} takes {ratio:.2f} times as long"
                parts.append(_dot(x(ratio), y, _colour(number), tip))
    size = f'width="{left + width + 40:.0f}" height="{height:.0f}"'
    return f'<svg class="rlx" xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>\n' + "\n".join(
        [*parts, "</svg>", ""]
    )


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _ticks(low: float, high: float) -> list[float]:
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    return [2.0**p for p in powers]


def _words(x: float, y: float, text: str, css: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(text)}</text>'


def _dot(x: float, y: float, colour: str, tip: str) -> str:
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="5"'
    return f'<circle {place} fill="{colour}" fill-opacity=".85"><title>{escape(tip)}</title></circle>'
