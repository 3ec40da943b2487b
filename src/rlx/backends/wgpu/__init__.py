"""Any GPU through WebGPU: kernels as WGSL, run by the package `wgpu` through Vulkan, Metal, DirectX 12 or OpenGL.

adapters                  which GPUs there are, and which one a name means
device, memory            a GPU: limits, buffers that come back, the queue
code, pipelines           kernels in 32-bit words; modules of many kernels, made when they are first run
recorder                  the commands of a run: one command encoder, one buffer of arguments
executable, runner        a program's run; arrays, params: values in the memory of the GPU
"""
