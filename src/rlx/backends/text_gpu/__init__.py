"""What GPUs share whose drivers compile text: wgpu, opencl and metal. Memory in buffers with numbers, arrays in it,
code that is compiled when a program is loaded, and runs whose commands are queued.

    memory      buffers, and addresses that are a buffer's number and a place in it
    device      `TextGpu`: what each of these devices brings
    arrays      values in the memory of one
    code        kernels as code for one kind of device
    runner      runs of a program
    executable  the backend's part: graphs in, programs out
"""
