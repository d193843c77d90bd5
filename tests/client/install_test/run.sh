#!/bin/sh
# Installs the library to a fresh prefix and builds its first user twice, by CMake and by
# pkg-config. Usage: run.sh BUILD_DIRECTORY C++_COMPILER
set -eu
build=$1
compiler=$2
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --component client --prefix "$work/prefix"
cmake -S "$here" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler"
cmake --build "$work/cmake"
"$work/cmake/consumer"

libdir=$(dirname "$(find "$work/prefix" -name libterrace.so)")
PKG_CONFIG_PATH="$libdir/pkgconfig"
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
"$compiler" -std=c++20 "$here/consumer.cc" -o "$work/by_pkg_config" \
  $(pkg-config --cflags --libs terrace)
LD_LIBRARY_PATH="$libdir" "$work/by_pkg_config"
