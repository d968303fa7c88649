#!/bin/sh
# Runs a command in a network namespace of its own, which has nothing but loopback, and says how many
# bytes passed there, with all headers: benchmarks/2026-11-19-peers/wire.sh scool peer simulate ...
# Needs root (or put "unshare --map-root-user --net" below).
exec unshare --net sh -c '
    ip link set lo up
    "$@"; code=$?
    sed -n "s/^ *lo: *\([0-9]*\) *\([0-9]*\).*/on the wire: \1 bytes in \2 packets/p" /proc/net/dev
    exit $code' sh "$@"
