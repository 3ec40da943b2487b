"""Nothing on the road of a run imports or waits for a lock that a fork in another thread may have left held."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rlx

ROOT = Path(rlx.__file__).parent
# Where a run passes through, with the functions there that import something and no run reaches, each with its reason.
ROAD = {
    "locks.py": {},
    "compile/memory/loops.py": {"working_bytes": "plans of LIR modules, while compiling"},
    "backends/api.py": {},
    "backends/cuda/arrays.py": dict.fromkeys(
        ("__dlpack__", "adopt"), "arrays of other libraries, before a run or after it"
    ),
    "backends/cuda/context.py": {},
    "backends/cuda/device.py": dict.fromkeys(("pool", "staging", "stream"), "loaded by `cuda/runner.py` before a run"),
    "backends/cuda/driver.py": {},
    "backends/cuda/executable.py": {"_where": "only reports ask"},
    "backends/cuda/memory.py": {"__init__": "streams are loaded with the runner, which takes one"},
    "backends/program/device_programs.py": {},
    "backends/program/inputs.py": {},
    "backends/cuda/runner.py": {},
    "backends/cuda/streams.py": {},
    "backends/donation.py": {},
    "backends/kernel_times.py": {},
    "backends/memory.py": {},
    "backends/memory_space.py": {},
    "backends/native/kernels.py": {
        "__call__": "kernels of tests; programs call code",
        "_slot": "kernels of tests; programs call code",
        "_compiled": "while compiling",
        "_print_code": "while compiling",
    },
    "backends/program/arena.py": {},
    "backends/cpu/context.py": {},
    "backends/program/copies.py": {"copy_kernel": "made before the first run, for programs with loops"},
    "backends/cpu/executable.py": {"where": "only reports ask", "where_tuned": "only reports ask", "save": "no run"},
    "backends/program/grid.py": dict.fromkeys(("_asking", "_is_plain", "of"), "while compiling"),
    "backends/program/host_bodies.py": {},
    "backends/program/host_calls.py": {},
    "backends/program/loop_plan.py": {},
    "backends/program/params.py": {},
    "backends/program/plan.py": {},
    "backends/cpu/pool.py": {},
    "backends/program/prepared_store.py": {},
    "backends/program/program.py": dict.fromkeys(
        ("_made", "_step", "_alignments", "preparations", "build_program", "build_programs"), "while compiling"
    ),
    "backends/cpu/preparer.py": {},
    "backends/program/table_layout.py": {},
    "backends/cpu/executor_layout.py": {},
    "backends/cpu/runner.py": {},
    "backends/cpu/short_calls.py": {},
    "backends/cpu/executor.py": {"compile_executor": "before the first run"},
    "backends/program/command_table.py": {},
    "backends/cpu/threads.py": {},
    "backends/cpu/timing.py": {},
    "ir/binding.py": {},
    "ir/index_checks.py": {},
    "runtime/arrays.py": {"_run_eagerly": "only operands that are no arrays of the host; imported with the runtime"},
    "runtime/compiled_graph.py": {"load_compiled": "before the first run"},
    "runtime/jit_runtime.py": {},
    "trace/nan_checks.py": {},
    "runtime/handles.py": {},
    "runtime/donation.py": {},
    "runtime/typed_io.py": {},
    "trace/arguments.py": {"_parameters": "when a function is given to jit"},
    "trace/jit.py": {"_interpreted": "while compiling"},
    "trace/pytree.py": {"register_dataclass": "no run", "static": "no run", "tree_reduce": "no run"},
    "trace/tracing.py": {},
}
# What the rest of a run is: definitions of ops, sizes and types, loaded before a program can be written.
LOADED = ("ir", "ops")

# Programs of all kinds, compiled and not yet run.
PROGRAMS = """
import builtins, os, sys, threading, time
import numpy as np
import rlx

def compiled():
    g = rlx.Graph("weights")
    x, w = g.input("x", ("B", 64)), g.param("w", (64, 64))
    g.set_outputs([rlx.relu(x @ w)])
    weights = rlx.Session("cpu").compile(g)
    weights.set_param("w", np.eye(64, dtype="f4"))
    yield "weights", lambda: weights.run(x=np.ones((96, 64), "f4"))

    g = rlx.Graph("handles")
    s = g.input("s", (8,))
    g.set_outputs([s + 1.0])
    handles = rlx.Session("cpu").compile(g)
    handles.bind_handle("s", np.zeros(8, "f4"))
    handles.set_handle_feed("s", 0)
    yield "handles", lambda: handles.run()

    x = np.arange(12, dtype="f4").reshape(4, 3)
    square = np.eye(3) + 0.1
    functions = {
        "loop": (lambda a: rlx.scan(lambda c, b: (c + b, c), a[0], a)[1], x),
        "host": (lambda a: rlx.eigh(a)[0], square),
        "body on the host": (lambda a: rlx.cond(a[0, 0] > 0, lambda v: rlx.eigh(v)[0], lambda v: v[0], a), square),
        "factors": (lambda a: rlx.numpy.linalg.svd(a)[1], square),
        "order": (lambda a: rlx.numpy.sort(a, axis=-1), x),
    }
    for name, (fn, argument) in functions.items():
        made = rlx.jit(fn).lower(argument).compile()
        yield name, lambda made=made, argument=argument: made(argument)
    warm = rlx.jit(lambda a: a * 2.0)
    warm(x)
    yield "jit", lambda: warm(x)

programs = dict(compiled())
"""


def in_process(script, timeout=120):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS + textwrap.dedent(script)], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imports_in_functions(path):
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield function.name, node.lineno


@pytest.mark.parametrize("file", ROAD)
def test_functions_on_the_road_import_nothing(file):
    found = list(imports_in_functions(ROOT / file))
    surprising = [f"{file}:{line} in {name}" for name, line in found if name not in ROAD[file]]
    assert not surprising, f"import at the top, or before the first run: {surprising}"
    assert set(ROAD[file]) <= {name for name, _ in found}, "an exception that is no longer needed"


def test_runs_stay_on_the_road():
    """Every function of rlx that a run calls is in a file above, or in a folder that is loaded as a whole."""
    out = in_process(
        """
        entered = set()
        def watch(frame, event, argument):
            if event == "call":
                entered.add((frame.f_code.co_filename, frame.f_code.co_name))
        threading.setprofile(watch)
        for run in programs.values():
            sys.setprofile(watch)
            run()
            run()
            sys.setprofile(None)
        root = os.path.dirname(rlx.__file__) + os.sep
        for file, name in sorted(entered):
            if file.startswith(root):
                print(file.removeprefix(root).replace(os.sep, "/"), name)
        """
    )
    entered = {tuple(line.split()) for line in out.splitlines()}
    assert len(entered) > 50
    beside = {file for file, _ in entered if file not in ROAD and file.split("/")[0] not in LOADED}
    assert not beside, f"add to ROAD, with what imports in functions there: {sorted(beside)}"
    importing = {(f, name) for f, name in entered if name in {found for found, _ in imports_in_functions(ROOT / f)}}
    assert not importing, f"runs import here: {sorted(importing)}"


def test_definitions_import_only_ops():
    """Any op may run on the host by its definition. All ops are loaded together, before anything is compiled, and to
    import what is loaded takes no lock."""
    found = 0
    for path in sorted((ROOT / "ops").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name == "eval":
                for node in ast.walk(function):
                    assert not isinstance(node, ast.Import), f"{path}:{node.lineno}"
                    if isinstance(node, ast.ImportFrom):
                        found += 1
                        assert node.module.startswith("rlx.ops."), f"{path}:{node.lineno} imports {node.module}"
    assert found


def test_first_runs_import_nothing():
    """NumPy's C code asks for modules of its own that were loaded with it; that takes no lock."""
    out = in_process(
        """
        real, seen = builtins.__import__, []
        def watched(name, globals=None, locals=None, fromlist=(), level=0):
            caller = sys._getframe(1).f_code
            if not (name.startswith("numpy.") and name in sys.modules):
                seen.append(f"{name} for {caller.co_filename}:{caller.co_name}")
            return real(name, globals, locals, fromlist, level)
        for name, run in programs.items():
            seen.clear()
            before = set(sys.modules)
            builtins.__import__ = watched
            run()
            run()
            builtins.__import__ = real
            if seen or set(sys.modules) != before:
                print(name, seen, set(sys.modules) - before)
        """
    )
    assert out == ""


def test_a_child_runs_whatever_locks_others_hold():
    """All locks that modules and objects of rlx have are held by another thread when the process forks."""
    out = in_process(
        """
        import gc
        kinds = (type(threading.Lock()), type(threading.RLock()))
        for run in programs.values():
            run()
        owners = [vars(m) for n, m in sys.modules.items() if n.split(".")[0] == "rlx"]
        for thing in gc.get_objects():
            if type(thing).__module__.split(".")[0] == "rlx":
                owners.append(getattr(thing, "__dict__", {}))
        locks = {id(v): v for o in owners for v in list(o.values()) if isinstance(v, kinds)}
        taken, done = threading.Event(), threading.Event()
        def hold():
            for lock in locks.values():
                lock.acquire()
            taken.set()
            done.wait()
            for lock in locks.values():
                lock.release()
        holder = threading.Thread(target=hold)
        holder.start()
        taken.wait()
        child = os.fork()
        if child == 0:
            for run in programs.values():
                run()
            rlx.jit(lambda a: a - 3.0)(np.ones(5, "f4"))
            with rlx.knobs(debug=0):
                pass
            os._exit(0)
        for _ in range(600):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            time.sleep(0.1)
        else:
            os.kill(child, 9)
            os.waitpid(child, 0)
            status = "the child hangs"
        done.set()
        holder.join()
        print(status, len(locks) > 8)
        """
    )
    assert out == "0 True\n"
