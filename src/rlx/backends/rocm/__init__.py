"""AMD GPUs: the kernels of the GPU makers through AMDGPU code."""
