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

# WebAssembly in this process. Pages are run by node, and by a browser where there is one.
if "$python" -c "import wasmtime" 2>/dev/null; then
    echo "WebAssembly: wasmtime"
else
    "$python" -m pip install --quiet --disable-pip-version-check wasmtime
    echo "WebAssembly: wasmtime, installed now"
fi
if command -v node >/dev/null; then
    echo "JavaScript: node $(node --version)"
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get install --quiet --quiet --yes --no-install-recommends nodejs >/dev/null
    echo "JavaScript: node, installed now"
else
    echo "JavaScript: none; install node for the tests of exported pages"
fi
if "$python" -c "import playwright" 2>/dev/null; then
    echo "browser driver: playwright"
else
    "$python" -m pip install --quiet --disable-pip-version-check playwright
    echo "browser driver: playwright, installed now"
fi
if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then
    echo "browser: $(command -v chromium || command -v chromium-browser || command -v google-chrome)"
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get install --quiet --quiet --yes --no-install-recommends chromium >/dev/null
    echo "browser: chromium, installed now"
else
    echo "browser: none; install chromium for the tests of the page"
fi
