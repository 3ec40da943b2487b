"""Loop kernels to code: LLVM IR, and objects or assembly from it; C99."""
