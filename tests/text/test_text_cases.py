"""Runs tests/text/*.rlx; the form of a case is described in tests/text_cases.py."""

import re

import numpy as np
import pytest

from random_graphs import inputs_for
from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.passes import run_passes
from rlx.ir.rewrite.rules import RuleSet, apply_rules
from rlx.ir.text.graph_text import parse, show
from rlx.ir.verify import verify_all
from text_cases import FOLDER, all_passes, parse_passes, read_cases, refreshed, run_case

FILES = sorted(FOLDER.glob("*.rlx"))
CASES = [pytest.param(case, id=f"{path.stem}-{i}") for path in FILES for i, case in enumerate(read_cases(path)[1])]


@pytest.mark.parametrize("case", CASES)
def test_what_comes_out(case):
    assert run_case(case).strip() == case.expected.strip()


@pytest.mark.parametrize("case", CASES)
def test_programs_are_canonical_valid_and_at_rest(case):
    before = parse(case.program)
    assert show(before) == re.sub(r"^#.*\n", "", case.program, flags=re.MULTILINE)
    passes = parse_passes(case.passes)
    after = run_passes(before, passes)
    assert verify_all(before) == verify_all(after) == []
    assert run_passes(after, passes) == after


@pytest.mark.parametrize("case", CASES)
def test_values_stay_the_same(case):
    """In f64, so that only a wrong program can differ by more than the rounding of a few sums."""
    before = parse(case.program.replace("f32", "f64"))
    after = run_passes(before, parse_passes(case.passes))
    values = inputs_for(before)
    for want, got in zip(interpret(before, values), interpret(after, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def used_passes():
    return [p for path in FILES for case in read_cases(path)[1] for p in parse_passes(case.passes)]


def test_every_pass_has_a_case():
    ours = {name for name, cls in all_passes().items() if cls.__module__.startswith("rlx.compile")}
    # Its option is a table of arrays, which no literal can be.
    assert ours - {p.name for p in used_passes()} == {"specialize_params"}


def test_every_rule_fires_in_a_case():
    known = {rule for p in used_passes() for rule in rule_names(p)}
    fired = set()
    for path in FILES:
        for case in read_cases(path)[1]:
            graph = parse(case.program)
            for step in parse_passes(case.passes):
                fired |= rules_fired(step, graph)
                graph = step.run(graph)
    assert known - fired == set()
    assert len(known) > 30


def rule_names(step):
    return {rule.name for rule in rules_of(step).rules}


def rules_of(step):
    return getattr(step, "rules", RuleSet("none", ()))


def rules_fired(step, graph):
    return set(apply_rules(graph, rules_of(step)).fired)


def test_every_reason_is_given_in_a_case():
    given = {line.split(": ")[1] for path in FILES for line in path.read_text().splitlines() if line[:7] == "# MISS "}
    # Of a group that its pass would join, or of a pass that did not run: no case, in which passes did run, can end so.
    assert set(MissReason) - given == {
        MissReason.NotFused,
        MissReason.SharedMatmulCount,
        MissReason.SwigluGateBeforeUp,
    }


def test_refreshing_changes_nothing():
    assert [path.name for path in FILES if refreshed(path) != path.read_text()] == []


def test_a_changed_expectation_is_noticed_and_refreshed(tmp_path):
    path = tmp_path / "case.rlx"
    text = "# RUN: dead_code_elimination\nmir @f(%x: f32[2]) {\n  %0: f32[2] = neg(%x)\n  return %x\n}\n# CHECK\n"
    path.write_text(f"# Dead nodes go.\n\n{text}nonsense\n")
    (case,) = read_cases(path)[1]
    assert run_case(case) != case.expected
    assert refreshed(path) == f"# Dead nodes go.\n\n{text}mir @f(%x: f32[2]) {{\n  return %x\n}}\n"


def test_unknown_passes_and_missing_checks_are_named(tmp_path):
    with pytest.raises(AssertionError, match="there is no pass 'fuse_everything'"):
        parse_passes("fuse_everything")
    path = tmp_path / "case.rlx"
    path.write_text("# RUN: dead_code_elimination\nmir @f() {\n  return\n}\n")
    with pytest.raises(AssertionError, match="has no '# CHECK' line"):
        read_cases(path)


def test_options_are_literals():
    first, second = parse_passes('fuse_attention_block(threshold=6), LowerControlFlow(keep=("If",))')
    assert (first.threshold, second.keep) == (6, {"If"})
