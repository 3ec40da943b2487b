"""Programs as folders for browsers: what `rlx export web MODEL DIR` writes. Any file server can serve one.

    program.wasm    the kernels, linked            rlx.js, rlx.d.ts      the runtime, and its types
    relaxed.wasm    the same with faster products, for browsers that have the instruction
    program.json    steps, sizes, types            program.d.ts          what this program takes and gives
    weights.*.bin   weights as kernels read them   index.html            a page to try it

With the option `gpu` there are `gpu.json.gz` and `gpu.*.bin` as well, which browsers with WebGPU load instead.

A language model has `model.json` as well: its tokenizer, and how it is run token by token. Everything is compiled here;
neither LLVM nor any other tool is needed where the page runs.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from rlx.backends.api import CompileOptions
from rlx.backends.export import Array, Exported, Exporter, ModelNotes
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.backends.program.program import build_program
from rlx.backends.program.signature import Signature
from rlx.backends.wasm.code import RELAXED, codes_of, link_codes, wasm_loading
from rlx.backends.wasm.gpu_program import gpu_program
from rlx.backends.wasm.linker import Linked
from rlx.backends.wasm.prepared import arrays_of
from rlx.backends.wasm.sandbox import aligned, require_room
from rlx.backends.wasm.web_program import FORMAT, WebProgram, check_types, declaration, parts_of
from rlx.errors import InternalError, RlxError
from rlx.ir.graph import Graph

PART_MB = 32
GPU_FILE = "gpu.json.gz"
# Files of `web/` that every folder has.
RUNTIME = ("rlx.js", "rlx.d.ts", "sizes.js", "wasm_machine.js", "threads.js", "helper.js", "needs_server.js")
GPU_RUNTIME = ("gpu_machine.js", "gpu_kernels.js")
# By the kind of a model; the first one is the page, whatever it is called here.
PAGES = {
    "program": ("program.html", "plain_numbers.js"),
    "decoder": (
        "chat.html",
        "page.js",
        "worker.js",
        "offline.js",
        "language_model.js",
        "language_model.d.ts",
        "tokenizer.js",
    ),
    "encoder": ("embed.html", "embedder.js", "embedder.d.ts", "tokenizer.js"),
}


class WebExporter(Exporter):
    """A folder with a program and a page for it."""

    options: ClassVar[Mapping[str, str]] = {
        "part": f"megabytes of one file of weights ({PART_MB} by default)",
        "gpu": "yes writes what browsers with WebGPU run as well (no by default)",
    }
    wants_notes: ClassVar[bool] = True

    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported:
        return self._export(graph, params, None, out, options)

    def export_model(
        self,
        graph: Graph,
        params: Mapping[str, Array],
        notes: ModelNotes,
        out: Path,
        options: Mapping[str, str] | None = None,
    ) -> Exported:
        return self._export(graph, params, notes, out, options)

    def _export(
        self,
        graph: Graph,
        params: Mapping[str, Array],
        notes: ModelNotes | None,
        out: Path,
        options: Mapping[str, str] | None,
    ) -> Exported:
        part_bytes, has_gpu = _part_bytes(self.checked(options)), _has_gpu(self.checked(options))
        signature = Signature.of(graph)
        check_types(signature.inputs)
        program, modules = _compiled(graph, signature, params)
        gpu = gpu_program(graph, signature, params) if has_gpu else None
        data_end = max(linked.data_end for linked in modules.values())
        require_room(f"@{graph.name}", {"weights": program.weight_bytes, "code": aligned(data_end)})
        with _whole_folder(out) as folder:
            parts = _write_parts(program, folder, "weights", part_bytes)
            if gpu is not None:
                gpu_parts = _write_parts(gpu.web, folder, "gpu", part_bytes, parts)
                (folder / GPU_FILE).write_bytes(gpu.file(gpu_parts))
            flags = {name: linked.memory_flags for name, linked in modules.items()}
            _write_json(
                folder / "program.json",
                {
                    **program.document,
                    "dataEnd": data_end,
                    "memoryFlags": flags,
                    "parts": parts,
                    "gpu": GPU_FILE if has_gpu else None,
                },
            )
            for name, linked in modules.items():
                (folder / name).write_bytes(linked.module)
            (folder / "program.d.ts").write_text(declaration(signature), encoding="utf-8")
            shown, *scripts = PAGES["program" if notes is None else notes["kind"]]
            (folder / "index.html").write_bytes(_resource(shown))
            for name in (*RUNTIME, *(GPU_RUNTIME if has_gpu else ()), *scripts):
                (folder / name).write_bytes(_resource(name))
            if notes is not None:
                _write_json(folder / "model.json", notes)
            sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        # What a browser loads before weights, at most: one of the modules, and no types.
        loaded = {name for name in sizes if not name.endswith((".bin", ".d.ts")) and name != "model.json"}
        page = sum(sizes[name] for name in loaded - {*modules}) + max(sizes[name] for name in modules)
        figures = {"page": f"{page / 1e3:.0f} kB", "weights": f"{program.weight_bytes / 1e6:.1f} MB"}
        if gpu is not None:
            own = sum(size for name, size in sizes.items() if name.startswith("gpu.") and name.endswith(".bin"))
            figures["weights for GPUs alone"] = f"{own / 1e6:.1f} MB"
        if notes is not None:
            figures["tokenizer"] = f"{sizes['model.json'] / 1e3:.0f} kB"
        figures["kernels"] = str(len(program.document["grids"]))
        names = ["index.html", *(name for name in sizes if name != "index.html")]
        return Exported(tuple(out / name for name in names), figures)


def _part_bytes(options: Mapping[str, str]) -> int:
    given = options.get("part", str(PART_MB))
    if not (given.isascii() and given.isdigit() and 0 < int(given) <= 1024):
        raise RlxError(f"export: part is a number of megabytes from 1 to 1024, got {given!r}")
    return int(given) << 20


def _has_gpu(options: Mapping[str, str]) -> bool:
    given = options.get("gpu", "no")
    if given not in ("yes", "no"):
        raise RlxError(f"export: gpu is yes or no, got {given!r}")
    return given == "yes"


def _compiled(graph: Graph, signature: Signature, params: Mapping[str, Array]) -> tuple[WebProgram, dict[str, Linked]]:
    """The program with its weights as its kernels read them, and its modules, which have the same kernels."""
    compiled = compile_with_options(graph, "wasm", CompileOptions())
    main = build_program(compiled.lir, loading=wasm_loading())
    codes = codes_of(main)
    program = WebProgram(main, codes, signature, arrays_of(main, compiled, params))
    relaxed = codes_of(build_program(compiled.lir, loading=wasm_loading(RELAXED)))
    if [code.name for code in relaxed.values()] != [code.name for code in codes.values()]:
        raise InternalError(f"@{graph.name}: the modules of a page have different kernels")
    return program, {"program.wasm": link_codes(codes), "relaxed.wasm": link_codes(relaxed)}


def _write_parts(
    program: WebProgram, folder: Path, name: str, part_bytes: int, others: Sequence[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """The files `name.000.bin`, ... with the memory of a program, and what documents say of them. Parts of another
    program that have the same bytes are not written again: blocks of GGUF files are laid out alike for all machines."""
    found: list[Mapping[str, Any]] = []
    for number, part in enumerate(parts_of(program, part_bytes)):
        other = others[number] if number < len(others) else None
        if other is not None and (folder / other["file"]).read_bytes() == part:
            found.append(other)
            continue
        file = f"{name}.{number:03}.bin"
        (folder / file).write_bytes(part)
        found.append({"file": file, "size": len(part), "crc32": zlib.crc32(part)})
    return found


def _resource(name: str) -> bytes:
    return resources.files("rlx.backends.wasm").joinpath("web", name).read_bytes()


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    path.write_text(text, encoding="utf-8")


@contextmanager
def _whole_folder(out: Path) -> Iterator[Path]:
    """A folder that appears as `out` when the block ends well; however else it ends, nothing is left. An earlier export
    is replaced, anything else that is there stays."""
    if out.exists() and not (out.is_dir() and (_is_export(out) or not any(out.iterdir()))):
        raise RlxError(f"export: {out} exists and is no folder that was exported before; choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.getpid()}.{os.urandom(4).hex()}")
    beside.mkdir()
    try:
        yield beside
        if out.exists():
            old = beside.with_name(f"{beside.name}.old")
            out.rename(old)
            beside.rename(out)
            shutil.rmtree(old)
        else:
            beside.rename(out)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _is_export(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "program.json").read_text(encoding="utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False
