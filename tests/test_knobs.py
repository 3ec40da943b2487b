"""Knobs: from where each takes its value, what is refused, and how long an override lasts."""

import contextvars
import threading
from pathlib import Path

import pytest

from rlx import env
from rlx.errors import RlxError
from rlx.knobs import Knobs, all_knobs, knobs


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for knob in all_knobs():
        monkeypatch.delenv(knob.variable, raising=False)
    monkeypatch.delenv("RLX_WORKERS", raising=False)
    env.clear_overrides()
    yield
    knobs.reset()
    env.clear_overrides()


def test_layers_from_weak_to_strong(monkeypatch):
    assert knobs.debug == 0
    monkeypatch.setenv("RLX_DEBUG", "1")
    assert knobs.debug == 1
    env.set("debug", "2")
    assert knobs.debug == 2
    knobs.set(debug=3)
    assert knobs.debug == 3
    with knobs(debug=4) as inside:
        assert knobs.debug == inside.debug == 4
        with knobs(verify=0):
            assert (knobs.debug, knobs.verify) == (4, 0)
        assert knobs.verify == 1
    assert knobs.debug == 3
    knobs.reset()
    assert knobs.debug == 2


def test_types():
    assert knobs.values() == {
        "debug": 0,
        "dump": None,
        "override": None,
        "skip_passes": "",
        "verify": 1,
        "backend": None,
        "threads": None,
        "cpu": None,
        "cache_dir": None,
        "kernel_dispatch": "prefer_native",
        "trace_perfetto": None,
        "ir_dump": None,
        "verbose": 0,
        "dispatch_report": False,
        "higher_order_no_fuse": False,
        "fk_batch_single_kernel": False,
        "fusion_report": False,
        "fuse_attn_threshold": 64,
        "enable_fuse_transformer_layer": False,
        "disable_matmul_bias_fusion": False,
        "disable_residual_ln_fusion": False,
        "no_weight_concat_fusion": False,
        "no_shared_input_matmul": False,
        "keep_elementwise_regions": False,
        "decompose_fusion_regions": False,
        "no_fk_fusion": False,
        "fuse_region_prologue": True,
        "fuse_batch_preprocess": True,
        "native_fk_regions": None,
        "no_native_fk_regions": False,
        "cuda_one_kernel": True,
        "rocm_blas": True,
        "wgpu_features": None,
        "metal_no_fusion": False,
        "metal_unfuse_regions": False,
        "xla_devices": None,
        "xla_buckets": False,
        "mlx_mode": None,
        "tpu_hlo_dump": None,
        "arena_align": 64,
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("threads", "4", 4),
        ("dispatch_report", "off", False),
        ("dispatch_report", "1", True),
        ("dump", "/tmp/d", "/tmp/d"),
        ("dump", "", None),
        ("debug", "", 0),
        ("kernel_dispatch", "common", "force_common"),
        ("verbose", "2", 2),
    ],
)
def test_environment(monkeypatch, name, text, value):
    monkeypatch.setenv("RLX_" + name.upper(), text)
    assert getattr(knobs, name) == value


def test_second_variable(monkeypatch):
    monkeypatch.setenv("RLX_WORKERS", "3")
    assert knobs.threads == 3
    monkeypatch.setenv("RLX_THREADS", "5")
    assert knobs.threads == 5


def test_values_from_code_are_normalised():
    with knobs(kernel_dispatch="native", dispatch_report=True, dump=Path("x"), threads=2):
        assert (knobs.kernel_dispatch, knobs.dispatch_report) == ("force_native", True)
        assert (knobs.dump, knobs.threads) == ("x", 2)
        with knobs(dump=None, threads=None):
            assert knobs.dump is None and knobs.threads is None


def test_bad_values_teach(monkeypatch):
    monkeypatch.setenv("RLX_DEBUG", "lots")
    with pytest.raises(RlxError, match=r"RLX_DEBUG='lots': a whole number is needed; debug means: how much to print"):
        _ = knobs.debug
    with pytest.raises(RlxError, match="debug='9': a number from 0 to 4 is needed"):
        knobs(debug=9)
    with pytest.raises(RlxError, match="threads='0': at least 1"):
        knobs.set(threads=0)
    with pytest.raises(RlxError, match="debug='None'"):
        knobs(debug=None)
    with pytest.raises(RlxError, match="no knob 'debgu'; the knobs are: debug, dump"):
        knobs(debgu=1)
    with pytest.raises(AttributeError, match=r"knobs\.set\(debug=\.\.\.\)"):
        knobs.debug = 3


def test_a_failed_set_changes_nothing():
    with pytest.raises(RlxError):
        knobs.set(debug=2, threads=0)
    assert knobs.debug == 0


def test_scope_belongs_to_its_context():
    seen = {}

    def look(name):
        seen[name] = knobs.debug

    with knobs(debug=3):
        for name, target in [("bare", look), ("carried", contextvars.copy_context().run)]:
            args = (name,) if name == "bare" else (look, name)
            thread = threading.Thread(target=target, args=args)
            thread.start()
            thread.join()
        values = knobs.values()
    assert seen == {"bare": 0, "carried": 3}
    with knobs(**values):
        assert knobs.debug == 3


def test_scope_ends_with_an_error():
    with pytest.raises(KeyError), knobs(debug=3):
        raise KeyError
    assert knobs.debug == 0


def test_markdown_lists_every_knob():
    lines = knobs.markdown().splitlines()
    assert len(lines) == 2 + len(all_knobs())
    assert lines[2].startswith("| `debug` | `RLX_DEBUG` | `0` | how much to print")
    assert "| `threads` | `RLX_THREADS`, `RLX_WORKERS` | unset |" in knobs.markdown()
    assert all(line.count("|") == 5 for line in lines)


def test_class_access_gives_the_knob():
    assert Knobs.debug.doc.startswith("how much to print")
