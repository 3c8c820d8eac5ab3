# Sourced in the guest: makes RDMA devices out of network interfaces that lead nowhere.
#
#   rxe   rxe0, RoCEv2 on 10.77.0.1; an interface MTU of 4200 gives the RDMA MTU 4096
#   siw   siw0, iWARP on 10.78.0.1; skipped, with a word, where the kernel has no module for it
#
# GID 0 is link-local, GID 1 the IPv4 address.
modprobe ib_uverbs && modprobe rdma_ucm && modprobe dummy numdummies=0 || return 1
for device; do
  case $device in
    rxe) interface=eth0 address=10.77.0.1/24 mtu=4200 module=rdma_rxe ;;
    siw) interface=eth1 address=10.78.0.1/24 mtu=9000 module=siw ;;
    *) echo "devices.sh: $device is none of rxe, siw" >&2; return 1 ;;
  esac
  if ! modprobe "$module"; then
    [ "$device" = siw ] || return 1
    echo "guest: no siw0: Debian's kernel has no such module; tests/guest/siw builds it" >&2
    continue
  fi
  ip link add "$interface" type dummy &&
    ip addr add "$address" dev "$interface" &&
    ip link set "$interface" mtu "$mtu" up &&
    rdma link add "${device}0" type "$device" netdev "$interface" || return 1
done
