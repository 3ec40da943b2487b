#!/usr/bin/env bash
# Installs what `make test-targets` needs and this machine lacks; a second run finds everything and does nothing.
# Usage: tools/install_tools.sh PYTHON, the interpreter whose environment gets the packages.
set -euo pipefail
python=${1:?usage: tools/install_tools.sh PYTHON}

# A C compiler for the emitted C: the machine's own, else the one that comes as a Python package.
if command -v gcc >/dev/null || command -v clang >/dev/null; then
    echo "C compiler: $(command -v gcc || command -v clang)"
elif "$python" -c "import ziglang" 2>/dev/null; then
    echo "C compiler: ziglang"
else
    "$python" -m pip install --quiet --disable-pip-version-check ziglang
    echo "C compiler: ziglang, installed now"
fi

# XLA for the device `xla`, in the version that its adapter knows.
xla=$(sed -n 's/^xla = \["\(.*\)"\]$/\1/p' "$(dirname "$0")/../pyproject.toml")
if "$python" -c "import importlib.metadata as m; assert 'jaxlib==' + m.version('jaxlib') == '$xla'" 2>/dev/null; then
    echo "XLA: $xla"
else
    "$python" -m pip install --quiet --disable-pip-version-check "$xla"
    echo "XLA: $xla, installed now"
fi
