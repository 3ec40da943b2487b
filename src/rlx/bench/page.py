"""docs/benchmarks.md: measured suites as one page, ratios first."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.bench.driver import BenchResult
from rlx.bench.engines import OURS
from rlx.bench.report import duration, geometric_mean, notes, own_rows, peers_of, share_of_limit, times

HEAD = """<!-- Written by tools/benchmark_page.py from the JSON of `rlx bench`; do not edit. -->

# Benchmarks

Ratios are peer time divided by rlx time: above 1 rlx is faster. All engines of a table ran in one session, each in a
process of its own, with their rounds interleaved; a ratio is the median over rounds in which both ran. Every result was
checked before it was timed, against f64 unless a note says otherwise. `rlx bench SUITE` repeats a table on your
machine. Do not compare separate runs: the speed of a machine drifts by more than the differences to be seen.
"""


def page(results: Sequence[BenchResult], machine: str) -> str:
    """The page of these results, all from one machine."""
    return "\n".join([HEAD, f"Machine: {machine}.\n", *(_section(result) for result in results)])


def _section(result: BenchResult) -> str:
    peers = peers_of(result)
    head = ["case", "best peer", *peers, f"{OURS}, time", "of limit"]
    rows = []
    for case, engine, title in own_rows(result):
        timing, best = case.timings[engine], case.best_peer
        first = f"**{times(case.ratio(best, engine))}** {best}" if best else "-"
        ratios = [times(case.ratio(p, engine)) for p in peers]
        rows.append([title, first, *ratios, duration(timing.seconds), share_of_limit(timing)])
    for group in dict.fromkeys(c.case.group for c in result.cases):
        members = [c for c in result.cases if c.case.group == group]
        if len(members) > 1:
            mean = times(geometric_mean(c.ratio(c.best_peer) for c in members))
            means = [times(geometric_mean(c.ratio(p) for c in members)) for p in peers]
            rows.append([f"*{group}: geometric mean*", f"**{mean}**", *means, "", ""])
    lines = [f"## {result.suite}, {result.threads} threads\n", _line(head), _line(["---"] * len(head))]
    # The first note is the machine, which stands at the top of the page.
    return "\n".join([*lines, *map(_line, rows), "", *(f"- {note}" for note in notes(result)[1:]), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
