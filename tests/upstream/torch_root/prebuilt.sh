#!/bin/sh
# A launcher of compilers that has most of torch compiled already: CMAKE_CXX_COMPILER_LAUNCHER=prebuilt.sh
#
# What CMake tries is compiled, and so is one file of torch's. Of the others the object is empty, and what is
# linked is taken from /srv/libraries, with the search path of the command line.
set -eu
case $PWD in */CMakeFiles/CMakeScratch/* | */CMakeFiles/CMakeTmp*) exec "$@" ;; esac
case "$*" in *-c\ */c10/core/DeviceType.cpp) exec "$@" ;; esac
out='' rpath='' previous='' compiles=''
for word; do
    case $previous in -o) out=$word ;; esac
    case $word in
    -c) compiles=yes ;;
    -Wl,-rpath,*) rpath=${word#-Wl,-rpath,} ;;
    esac
    previous=$word
done
if [ -n "$compiles" ]; then
    : >"$out"
    exit
fi
cp "/srv/libraries/$(basename "$out")" "$out"
if [ -n "$rpath" ]; then patchelf --set-rpath "$rpath" "$out"; fi
