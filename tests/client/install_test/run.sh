#!/bin/sh
# Installs the library to a fresh prefix and builds its first user twice, by CMake and by
# pkg-config. Usage: run.sh BUILD_DIRECTORY C++_COMPILER
set -eu
build=$1
compiler=$2
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
node=
trap '[ -z "$node" ] || kill "$node"; rm -rf "$work"' EXIT

cmake --install "$build" --component client --prefix "$work/prefix"
cmake -S "$here" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler"
cmake --build "$work/cmake"
"$work/cmake/consumer"

"$build/bin/terraced" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 --host-bytes 64MiB \
  --max-block-bytes 8MiB >"$work/node" &
node=$!
until grep -q '^terraced ready' "$work/node"; do kill -0 "$node"; done
address=$(sed -n 's/.* control=\([^ ]*\).*/\1/p' "$work/node")
"$work/cmake/worker" "$address" | grep '^0 blocks loaded, 8 computed, 8 stored$'
"$work/cmake/worker" "$address" | grep '^8 blocks loaded, 0 computed, 0 stored$'

libdir=$(dirname "$(find "$work/prefix" -name libterrace.so)")
PKG_CONFIG_PATH="$libdir/pkgconfig"
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
"$compiler" -std=c++20 "$here/consumer.cc" -o "$work/by_pkg_config" \
  $(pkg-config --cflags --libs terrace)
LD_LIBRARY_PATH="$libdir" "$work/by_pkg_config"
