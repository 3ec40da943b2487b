"""Any GPU through WebGPU: WGSL shaders."""
