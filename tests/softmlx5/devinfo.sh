#!/bin/sh
# devinfo.sh LAUNCHER: libibverbs finds the device and says what it is.
if ! command -v ibv_devinfo >/dev/null; then
  echo "SKIP: ibv_devinfo is not installed (Debian: apt-get install ibverbs-utils ibverbs-providers)"
  exit 77
fi
out=$("$1" ibv_devinfo -v) || exit 1
for expected in 'mlx5_0' 'PORT_ACTIVE' 'vendor_part_id:.*4119' 'RoCE v2' 'board_id:.*POLLEN_SOFT'; do
  echo "$out" | grep -q "$expected" || { echo "missing: $expected"; echo "$out"; exit 1; }
done
# What it does not have must be said, not pretended.
echo "$out" | grep -A1 'rc_odp_caps' | grep -q 'NO SUPPORT' || exit 1
