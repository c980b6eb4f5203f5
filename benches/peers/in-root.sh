#!/bin/sh
# Runs a program of another distribution, unpacked below a directory, on this machine.
#   in-root.sh ROOT DIRECTORY... -- PROGRAM [ARGUMENT]...
# The program sees ROOT as `/`, and each DIRECTORY of this machine at its own path. Needs root: mount namespace, chroot.
set -eu
exec unshare --mount sh -c '
set -eu
root=$1
shift
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --bind "$1" "$root$1"
    shift
done
shift
exec chroot "$root" "$@"
' in-root "$@"
