"""Any device with an OpenCL driver: GPUs, and processors through pocl.

driver      the functions of the OpenCL loader that are used, by ctypes
devices     what platforms there are, and which device is meant by a number
device      one of them at work: memory, queue, compiled kernels
executable  the backend
"""
