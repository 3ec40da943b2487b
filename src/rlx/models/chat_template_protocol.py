"""What goes between a process and the one in which its chat templates run.

A request is a length and `marshal` of (source, arguments), where arguments None asks for a check of the source alone.
An answer is a kind of one byte, a length and text. Requests come from the owner of the other process, and are trusted;
answers come from where templates run, and are plain text.
"""

from __future__ import annotations

import struct

REQUEST = struct.Struct("<I")
ANSWER = struct.Struct("<cI")
# Kinds of answers: the text that was asked for, a template that is none, a rendering that failed, memory that is short.
TEXT, BAD_SOURCE, FAILED, NO_MEMORY = b"=", b"s", b"f", b"m"
# All memory of the process in which templates run.
MAX_BYTES = 256 << 20
# What reading a template and rendering it may take together.
MAX_SECONDS = 2.0
