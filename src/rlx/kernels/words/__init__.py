"""Kernels in 32-bit words, for machines that have nothing else: WGSL has no other integers and no other storage.

ranges   which 64-bit integers are positions that fit into 32 bits, and which are data of two words
pairs    exact 64-bit arithmetic on two words
memory   elements of 1, 2 and 8 bytes in buffers of words
words    the pass: loop IR in, scalar loop IR of bool, i32, u32, f32 and positions out
"""
