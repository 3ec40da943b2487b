"""WebAssembly: programs for browsers, and in this process through wasmtime.

    code (linker, objects, binary)   kernels as objects of LLVM, linked into one module without any other tool
    backend, runner, context         a program's run in this process; sandbox is wasmtime's side of it
    exporter, web_program            a program as a folder for browsers; web/ has the JavaScript of such folders

Kernels take 64-bit sizes and read their arguments from 8-byte slots, as on CPUs; addresses are those of the module's
own memory and fill the lower half of a slot. What has no kernel runs on the host in this process, as reports say, and
is refused by name when a program is exported.
"""
