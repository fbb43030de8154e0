#!/bin/sh
# Make upstream's tree of the packages in /srv/torch, and lay out the libraries that were made of it:
#   tree.sh TREE LIBRARIES
# The tree has those of Debian's patches that let the system's libraries take the place of third_party.
set -eu
tree=$1 libraries=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$tree" "$libraries"
mkdir -p "$tree" "$libraries"

tar -xf /srv/torch/pytorch_*.orig.tar.* --strip-components=1 -C "$tree"
tar -xf /srv/torch/pytorch_*.debian.tar.* -C "$work"
# not those of its packaging: version, shebangs, paths, requirements, flags that its own wheel does without
grep -v -E '^(1060|2000|2060|2080|2200|2310)-' "$work/debian/patches/series" | while read -r name; do
    patch -d "$tree" -p1 -s --no-backup-if-mismatch <"$work/debian/patches/$name"
done
mkdir "$tree/debian"
cp -a "$work"/debian/pocketfft* "$work"/debian/kineto* "$tree/debian"
cd "$tree"
# a wheel has no versioned names, which would be copies, and finds its libraries beside them
sed -i '/option(HAVE_SOVERSION/s/ON)/OFF)/' CMakeLists.txt
# shellcheck disable=SC2016 # CMake's variable
sed -i -e 's/set(CMAKE_INSTALL_RPATH "")/set(CMAKE_INSTALL_RPATH "${_rpath_portable_origin}")/' \
    -e 's/set(CMAKE_INSTALL_RPATH_USE_LINK_PATH FALSE)/set(CMAKE_INSTALL_RPATH_USE_LINK_PATH TRUE)/' cmake/Dependencies.cmake
# made by the flatbuffers that it is compiled with
(cd torch/csrc/jit/serialization && flatc --cpp --gen-mutable --scoped-enums mobile_bytecode.fbs)
# upstream's own is not in the package
cat >.gitignore <<'END'
__pycache__/
*.egg-info/
/build/
/dist/
/compile_commands.json
/functorch/*.so
/torch/*.so
/torch/bin/
/torch/include/
/torch/lib/*.a
/torch/lib/*.so*
/torch/share/
/torch/version.py
/torch/_C/*.pyi
/torch/_VF.pyi
/torch/nn/functional.pyi
/torch/return_types.pyi
/torch/csrc/autograd/generated/
/torch/testing/_internal/generated/
/torch/utils/benchmark/utils/valgrind_wrapper/*.h
/torch/utils/data/datapipes/datapipe.pyi
/tools/shared/_utils_internal.py
END
git init -q --initial-branch=main
git add -A
git -c user.name=upstream -c user.email=upstream@localhost commit -qm "Upstream pytorch"

for package in /srv/torch/*.deb; do dpkg-deb -x "$package" "$work"; done
find "$work/usr" -type f \( -name 'lib*.so*' -o -name 'torch_shm_manager' -o -path '*/functorch/*.so' \) | while read -r file; do
    name=$(basename "$file" | sed 's/\.so\..*/.so/; s/^_C\..*/functorch.so/')
    cp "$file" "$libraries/$name"
done
cc -c -x c /dev/null -o "$libraries/empty.o"
for file in "$libraries"/lib* "$libraries/functorch.so" "$libraries/torch_shm_manager"; do
    set --
    for needed in $(patchelf --print-needed "$file"); do
        plain=${needed%.so.*}.so
        if [ -e "$libraries/$plain" ]; then set -- "$@" --replace-needed "$needed" "$plain"; fi
    done
    case $file in *.so) set -- "$@" --set-soname "$(basename "$file")" ;; esac
    patchelf "$@" "$file"
done
