#!/usr/bin/env bash
# Makes a folder with a Python for AArch64 and the packages rlx needs, which qemu-user runs on any machine: Debian's
# packages for arm64 unpacked, nothing installed, and wheels beside them. A second run finds it and does nothing.
# Usage: tools/arm64_python.sh PYTHON DIRECTORY; run programs by DIRECTORY/python.
set -euo pipefail
python=${1:?usage: tools/arm64_python.sh PYTHON DIRECTORY}
directory=${2:?usage: tools/arm64_python.sh PYTHON DIRECTORY}

if [ -x "$directory/python" ]; then
    exit 0
fi
command -v qemu-aarch64 >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/tree" "$work/wheels"

# A list of packages of its own: that of this machine stays as it is.
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$work/lists"
    -o Dir::Cache="$work/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root)
"${apt[@]}" update 2>/dev/null
# What the interpreter and its C extensions link against, and no more; python3.11 itself would draw in a whole system.
(cd "$work" && "${apt[@]}" download libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libssl3 \
    libuuid1 libpython3.11-minimal libpython3.11-stdlib python3.11-minimal)
for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$work/tree"
done

# The versions of the interpreter that the tests run in, so that both sides of a comparison are the same program.
packages=$("$python" -c 'from importlib.metadata import version as v
print(*(f"{p}=={v(p)}" for p in ("numpy", "llvmlite", "ml_dtypes")))')
# shellcheck disable=SC2086
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
    --dest "$work/wheels" $packages
for wheel in "$work"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$work/tree/packages"
done

# `max` is a processor with everything that this qemu knows, dot products of bytes and their matrices among it.
cat >"$work/python" <<'RUN'
#!/usr/bin/env bash
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONHOME="$here/tree/usr" PYTHONPATH="${PYTHONPATH:-}${PYTHONPATH:+:}$here/tree/packages"
exec qemu-aarch64 -cpu "${QEMU_CPU:-max}" -L "$here/tree" "$here/tree/usr/bin/python3.11" "$@"
RUN
chmod +x "$work/python"
"$work/python" -c "import numpy, llvmlite.binding, ml_dtypes"
mkdir -p "$(dirname "$directory")"
rm -rf "$directory"
mv "$work" "$directory"
trap - EXIT
rm -rf "$directory"/*.deb "$directory/lists" "$directory/cache" "$directory/wheels"
