"""Mutated programs, run on guarded memory: `fuzz(seed, count)` gives what went wrong, and how often what happened.

A mutant is made from the text of a sample of an op or of a random graph, reaches rlx as text, JSON or binary file, is
compiled for the CPU and run with its symbolic sizes bound to hostile values. It may be refused with an RlxError, or
run. It must not end the process, hang, raise anything else, touch memory outside of its arrays, or return what was in
memory before it ran. Worker processes do the work, so that one that dies only costs its program.

    python tests/graph_fuzz.py SEED NUMBER      shows one program, and runs it in this process
"""

from __future__ import annotations

import base64
import collections
import hashlib
import json
import os
import random
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import HealthCheck, given, settings

import rlx
import rlx.hir
import rlx.ops
from guarded_memory import guarded, on_guard_page
from random_graphs import graphs
from rlx.errors import RlxError
from rlx.ir.op import OP_CLASSES
from rlx.ir.serialize import from_bytes, from_json, to_bytes, to_json
from rlx.ir.text.graph_text import large_constants, parse, show

WITHOUT_SAMPLES = ("Input", "Param", "Constant", "Project")
# What these do is Python code of the user, and so are its errors.
OF_USERS = ("Custom", "HostCallback")
# Programs with larger values are compiled and not run: memory is not what is tested.
MOST_ELEMENTS = 1 << 20
# Seconds after which a program is slow (a loop may be told to go on for ever), and a process hangs.
SLOW, HANGS = 20, 120
ADDRESS_SPACE = 6 << 30
HOSTILE = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 1000, 4096, 65536)
HUGE = (2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 100)
VALUES = ("None", "True", "0", "-1", "1.5", "nan", "inf", "1e308", '""', '"x"', "()", "(0,)", "(1, 1)", "f32", "S")
DTYPES = ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "i64", "bool", "c64")


def base_programs() -> list[tuple[str, dict]]:
    """(text, large constants) of all samples and of some random graphs, the same in every process."""
    found = []
    for name, cls in sorted(OP_CLASSES.items()):
        # Not those that tests in this process have made.
        if name in WITHOUT_SAMPLES or name in OF_USERS or not cls.__module__.startswith("rlx."):
            continue
        for sample in cls.samples():
            graph = rlx.Graph("sample")
            inputs = [graph.input(f"x{i}", shape) for i, shape in enumerate(sample.shapes(sample.dtypes[0]))]
            result = graph.append_node(sample.op, inputs)
            graph.set_outputs(result if isinstance(result, tuple) else [result])
            found.append((show(graph), large_constants(graph)))

    @settings(max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(graphs())
    def collect(graph):
        found.append((show(graph), large_constants(graph)))

    collect()
    return [(t, c) for t, c in found if len(t) < 20_000]


class Mutator:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def text(self, text: str) -> str:
        change = self.rng.choices(
            (self.number, self.dim, self.dtype, self.value, self.operand, self.line, self.letter), (6, 4, 2, 4, 2, 1, 1)
        )[0]
        return change(text)

    def _replaced(self, text: str, pattern: str, new) -> str:
        places = list(re.finditer(pattern, text))
        if not places:
            return text
        place = self.rng.choice(places)
        return text[: place.start()] + str(new(place.group())) + text[place.end() :]

    def _integer(self, old: str) -> int:
        number = int(old) if len(old) < 20 else 0
        near = (number - 1, number + 1, number * 2, -number, number // 2)
        return self.rng.choice((*near, *near, *HOSTILE, -1, -2, self.rng.choice(HUGE), -self.rng.choice(HUGE)))

    def number(self, text: str) -> str:
        """An integer of an attribute, or of anything else."""
        return self._replaced(
            text, r"(?<=[=(, ])-?\d+(?=[,)}])" if self.rng.random() < 0.7 else r"\b\d+\b", self._integer
        )

    def dim(self, text: str) -> str:
        """A size of a leaf, everywhere or there only: another one or a symbol."""
        head, brace, rest = text.partition("{")
        sizes = re.findall(r"(?<=[\[,])\w+(?=[\],])", head)
        if not sizes:
            return text
        old, new = self.rng.choice(sizes), self.rng.choice((*map(str, SIZES), "S", "B", "S*2", "S+1"))
        pattern = rf"(?<=[\[,]){old}(?=[\],])"
        if self.rng.random() < 0.5:
            return re.sub(pattern, new, text)
        return self._replaced(head, pattern, lambda _: new) + brace + rest

    def dtype(self, text: str) -> str:
        old, new = (self.rng.choice(DTYPES) for _ in range(2))
        if self.rng.random() < 0.5:
            return re.sub(rf"\b{old}\[", f"{new}[", text)
        return self._replaced(text, r"\b[fiub]\w+(?=\[)", lambda _: new)

    def value(self, text: str) -> str:
        """A value of an attribute: one of another attribute, or any."""
        values = re.findall(r"=((?:\"[^\"]*\"|[-\w.]+))(?=[,}])", text)
        return self._replaced(
            text, r"(?<==)(?:\"[^\"]*\"|[-\w.]+)(?=[,}])", lambda _: self.rng.choice((*values, *VALUES))
        )

    def operand(self, text: str) -> str:
        names = re.findall(r"%\w+", text)
        return self._replaced(text, r"%\w+(?=[,)])", lambda old: self.rng.choice((*names, "", f"{old}, {old}")))

    def line(self, text: str) -> str:
        lines = text.split("\n")
        at = self.rng.randrange(len(lines))
        lines[at : at + 1] = self.rng.choice(([], [lines[at]] * 2))
        return "\n".join(lines)

    def letter(self, text: str) -> str:
        at = self.rng.randrange(len(text))
        return text[:at] + self.rng.choice(("", "(", "{", "\0", "é", "%", "9" * 30, text[at] * 2)) + text[at + 1 :]

    def json(self, text: str) -> str:
        """A value somewhere in a document."""
        document = json.loads(text)
        places = []

        def walk(value):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                places.append((value, key))
                if isinstance(inner, dict | list):
                    walk(inner)

        walk(document)
        holder, key = self.rng.choice(places)
        old = holder[key]
        if isinstance(old, str) and self.rng.random() < 0.7:
            holder[key] = self.number(old) if self.rng.random() < 0.6 else self.value(f"={old},")[1:-1]
        else:
            holder[key] = self.rng.choice((None, -1, 0, 1, 2, 2**63, 1.5, "", "f32[3]", [], {}, [0], True, old))
        return json.dumps(document)

    def binary(self, data: bytes) -> bytes:
        """Bytes of a file; half of the time with a checksum that fits them."""
        body = bytearray(data)
        for _ in range(self.rng.randint(1, 4)):
            body[self.rng.randrange(len(body))] = self.rng.choice((0, 1, 0x7F, 0xFF, self.rng.randrange(256)))
        if self.rng.random() < 0.2:
            del body[self.rng.randrange(len(body)) :]
        if self.rng.random() < 0.7:
            body[-16:] = hashlib.blake2b(bytes(body[:-16]), digest_size=16).digest()
        return bytes(body)


def retyped(text: str, constants: dict) -> str:
    """The text with the types of its results as they are inferred, so that mutants get further than the parser."""
    for _ in range(12):
        try:
            parse(text, constants)
            return text
        except RlxError as error:
            found = re.fullmatch(r"line (\d+): %\d+ is written .*, but \w+ infers (.*)", str(error), re.DOTALL)
            if found is None:
                return text
            lines = text.split("\n")
            number, types = int(found[1]) - 1, found[2]
            shown = f"({types})" if re.search(r"\], ", types) else types
            lines[number] = re.sub(r"(%\d+): .*? = (\w+\()", rf"\1: {shown} = \2", lines[number], count=1)
            if text == "\n".join(lines):
                return text
            text = "\n".join(lines)
        except Exception:
            # The program is a finding, for whoever runs it.
            return text
    return text


class Program(NamedTuple):
    """A mutant: its form, what a file would hold, and constants that its text names."""

    form: str
    content: str | bytes
    constants: dict

    def read(self):
        if self.form == "text":
            return parse(self.content, self.constants)
        return from_json(self.content) if self.form == "json" else from_bytes(self.content)

    def __str__(self) -> str:
        if isinstance(self.content, bytes):
            return f"{self.form}: {base64.b64encode(self.content).decode()}"
        return f"{self.form}: {self.content}"


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.seed, self.bases = seed, base_programs()

    def program(self, number: int) -> tuple[Program, random.Random]:
        rng = random.Random(f"{self.seed}:{number}")
        mutator = Mutator(rng)
        text, constants = rng.choice(self.bases)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            text = mutator.text(text)
        if rng.random() < 0.85:
            text = retyped(text, constants)
        form = rng.choices(("text", "json", "binary"), (6, 3, 2))[0]
        if form != "text":
            try:
                graph = parse(text, constants)
            except Exception:
                return Program("text", text, constants), rng
            if form == "json":
                written = to_json(graph)
                return Program(form, mutator.json(written) if rng.random() < 0.6 else written, {}), rng
            stored = to_bytes(graph)
            return Program(form, mutator.binary(stored) if rng.random() < 0.6 else stored, {}), rng
        return Program(form, text, constants), rng

    def outcome(self, number: int) -> str:
        """What became of a program: "ran", "refused: by whom", "too large", "slow", or a finding, in capitals."""
        stage = "read"
        try:
            signal.setitimer(signal.ITIMER_REAL, SLOW)
            program, rng = self.program(number)
            graph = program.read()
            stage = "compile"
            compiled = rlx.Session("cpu").compile(graph)
            stage = "run"
            binding = {name: rng.choice(SIZES) for name in _symbols(graph)}
            arrays = {n.op.key: _values(rng, n.shape, binding) for n in graph.nodes if n.is_leaf}
            if any(_elements(s, binding) > MOST_ELEMENTS for n in graph.nodes for s in n.shapes):
                return "too large"
            results = [_run(compiled, arrays, filling) for filling in (0xFF, 0x3C)]
            if isinstance(results[0], str) or isinstance(results[1], str):
                return next(r for r in results if isinstance(r, str))
            for a, b in zip(*results, strict=True):
                if a.tobytes() != b.tobytes():
                    return "UNDEFINED: a result depends on what was in memory before"
            return "ran"
        except RlxError:
            return f"refused: {stage}"
        except MemoryError:
            return "too large"
        except Slow:
            return "slow"
        except Exception as error:
            return f"UNCAUGHT: {stage}: {type(error).__name__}: {error}"[:600]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


class Slow(BaseException):
    pass


def _slow(*_):
    raise Slow


def _symbols(graph) -> list[str]:
    return sorted({s for n in graph.nodes if n.is_leaf for d in n.shape.dims for s in getattr(d, "symbols", ())})


def _elements(shape, binding) -> int:
    try:
        return int(np.prod([float(d) for d in shape.bind(binding).static_dims]))
    except RlxError:
        return 0


def _values(rng: random.Random, shape, binding) -> np.ndarray:
    """An operand: usually as declared, now and then of another size."""
    dims = []
    for d in shape.bind(binding).static_dims:
        dims.append(rng.choice(SIZES) if rng.random() < 0.03 else d)
    # NumPy holds no array without elements either whose other sizes are too large.
    if np.prod([float(d) for d in dims]) > MOST_ELEMENTS or np.prod([float(d) for d in dims if d]) > 2.0**59:
        raise MemoryError
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    dtype = shape.dtype.numpy
    if shape.dtype.is_int:
        low = 0 if dtype.kind == "u" else -2
        values = numbers.integers(low, 4, dims).astype(dtype)
        if rng.random() < 0.1 and values.size:
            values.flat[rng.randrange(values.size)] = np.iinfo(dtype).max if dtype.kind in "iu" else 1
        return values
    values = numbers.uniform(-2, 2, dims)
    if rng.random() < 0.15 and values.size:
        values.flat[rng.randrange(values.size)] = rng.choice((np.nan, np.inf, -np.inf, 1e30, 0.0))
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def _run(compiled, arrays, filling: int):
    """The results of a run with memory filled so, or a finding."""
    with guarded(filling) as memory, np.errstate(all="ignore"):
        again = compiled.clone()
        again.set_params({k: v for k, v in arrays.items() if k in again.param_types})
        inputs = {k: on_guard_page(v) for k, v in arrays.items() if k in again.input_types}
        results = [np.array(r) for r in again.run(inputs)]
        broken = memory.broken_redzones()
        return f"REDZONE: {broken} arrays were written around" if broken else results


# The parent of the workers.


class Finding(NamedTuple):
    seed: int
    number: int
    what: str
    program: str

    def __str__(self) -> str:
        return f"seed {self.seed}, program {self.number}: {self.what}\n{self.program}"


class Report(NamedTuple):
    counts: collections.Counter
    findings: list[Finding]


def fuzz(seed: int, count: int, first: int = 0) -> Report:
    """Run programs first .. first+count-1 of a seed, each once, whatever happens to the processes that do it."""
    counts: collections.Counter = collections.Counter()
    findings: list[Finding] = []
    fuzzer = None
    with tempfile.TemporaryDirectory() as cache:
        number, stop = first, first + count
        while number < stop:
            done, how = _work(seed, number, stop, cache, counts)
            for at, what in done:
                counts[what.split(":")[0] if what[:1].isupper() else what] += 1
                if what[:1].isupper():
                    fuzzer = fuzzer or Fuzzer(seed)
                    findings.append(Finding(seed, at, what, str(fuzzer.program(at)[0])))
            number = done[-1][0] + 1 if done else number
            if how:
                fuzzer = fuzzer or Fuzzer(seed)
                counts[how.split(":")[0]] += 1
                findings.append(Finding(seed, number, how, str(fuzzer.program(number)[0])))
                number += 1
    return Report(counts, findings)


def _work(seed: int, first: int, stop: int, cache: str, counts) -> tuple[list[tuple[int, str]], str]:
    """What a worker says of programs from `first` on, and how it ended if it did so before `stop`."""
    read, write = os.pipe()
    environment = {**os.environ, "RLX_CACHE_DIR": cache, "RLX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(seed), str(first), str(stop), str(write)]
    with tempfile.TemporaryFile() as errors:
        worker = subprocess.Popen(
            command, pass_fds=[write], stdout=subprocess.DEVNULL, stderr=errors, env=environment, start_new_session=True
        )
        os.close(write)
        text, hangs = b"", False
        while True:
            ready, _, _ = select.select([read], [], [], HANGS)
            if not ready:
                hangs = True
                os.killpg(worker.pid, signal.SIGKILL)
                break
            piece = os.read(read, 1 << 16)
            if not piece:
                break
            text += piece
        os.close(read)
        status = worker.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace")[-800:]
    done = [json.loads(line) for line in text.decode().split("\n") if line.endswith("]")]
    if len(done) == stop - first:
        return done, ""
    return done, f"HANGS: no word for {HANGS} s" if hangs else f"CRASH: the process ended with {status}: {said}"


def _worker(seed: int, first: int, stop: int, pipe: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _slow)
    fuzzer = Fuzzer(seed)
    for number in range(first, stop):
        os.write(pipe, (json.dumps([number, fuzzer.outcome(number)]) + "\n").encode())
        if number % 64 == 0:
            rlx.clear_compile_cache()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if len(sys.argv) == 5:
        _worker(*map(int, sys.argv[1:]))
    else:
        signal.signal(signal.SIGALRM, _slow)
        shown = Fuzzer(int(sys.argv[1]))
        print(shown.program(int(sys.argv[2]))[0], flush=True)
        print(shown.outcome(int(sys.argv[2])))
