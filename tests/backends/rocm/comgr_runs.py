"""AMD's own code-object manager, by ctypes: what the linker of ROCm makes of relocatable objects.

It has an LLVM inside, which ends a process that has another one (Mesa's, pocl's): it works in a process of its own.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p

LIBRARIES = ("libamd_comgr.so", "libamd_comgr.so.3", "libamd_comgr.so.2")
# Of its header: kinds of data, and the action that links.
RELOCATABLE, EXECUTABLE, LOG, LINK = 7, 8, 5, 9


class Handle(ctypes.Structure):
    """Everything is a number in a structure, passed by value."""

    _fields_ = (("number", c_uint64),)


class ComgrError(Exception):
    """What comgr says."""


MISSING = "comgr is not installed"


def linked_by_comgr(code: bytes, arch: str) -> bytes:
    """A code object of a relocatable object, as ROCm links it."""
    done = subprocess.run([sys.executable, __file__, arch], input=code, capture_output=True, timeout=120, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise ComgrError(said.splitlines()[-1] if said else f"it ended with {done.returncode}")
    return done.stdout


def comgr() -> ctypes.CDLL:
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ComgrError(MISSING)


def link(library: ctypes.CDLL, objects: Sequence[bytes], arch: str) -> bytes:

    def call(name: str, *arguments: object) -> None:
        function = getattr(library, f"amd_comgr_{name}")
        function.restype = c_int
        if status := function(*arguments):
            said = c_char_p()
            library.amd_comgr_status_string(c_int(status), byref(said))
            raise ComgrError(f"{name}: {(said.value or b'').decode()}")

    def bytes_of(found: Handle, kind: int) -> bytes:
        data, size = Handle(), c_size_t()
        call("action_data_get_data", found, c_int(kind), c_size_t(0), byref(data))
        call("get_data", data, byref(size), c_void_p())
        content = ctypes.create_string_buffer(size.value)
        call("get_data", data, byref(size), content)
        call("release_data", data)
        return content.raw

    given, made, info = Handle(), Handle(), Handle()
    call("create_data_set", byref(given))
    call("create_data_set", byref(made))
    call("create_action_info", byref(info))
    try:
        call("action_info_set_isa_name", info, c_char_p(f"amdgcn-amd-amdhsa--{arch}".encode()))
        call("action_info_set_logging", info, ctypes.c_bool(True))
        for number, content in enumerate(objects):
            data = Handle()
            call("create_data", c_int(RELOCATABLE), byref(data))
            call("set_data", data, c_size_t(len(content)), c_char_p(content))
            call("set_data_name", data, c_char_p(f"{number}.o".encode()))
            call("data_set_add", given, data)
            call("release_data", data)
        try:
            call("do_action", c_int(LINK), info, given, made)
        except ComgrError as error:
            raise ComgrError(f"{error}: {bytes_of(made, LOG).decode()}") from None
        return bytes_of(made, EXECUTABLE)
    finally:
        call("destroy_action_info", info)
        call("destroy_data_set", given)
        call("destroy_data_set", made)


if __name__ == "__main__":
    sys.stdout.buffer.write(link(comgr(), [sys.stdin.buffer.read()], sys.argv[1]))
