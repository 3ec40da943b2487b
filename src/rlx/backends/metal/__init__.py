"""Apple GPUs through Metal: kernels as text in its shading language, run by PyObjC's binding of Metal.framework.

    devices     which GPUs there are
    device      one of them at work: memory that the host shares, the command buffer of a run, pipelines
    executable  the backend

No Apple machine was at hand: tests/backends/metal_backend runs the same text as C++ and the same calls against a
stand-in that keeps books. docs/backends.md says so too.
"""
