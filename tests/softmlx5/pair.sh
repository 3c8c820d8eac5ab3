#!/bin/sh
# pair.sh LAUNCHER COMMAND [ARGUMENT]...
# Runs COMMAND as a server and again as its client, each in a process of its own under the software
# NIC. Passes when both end well. 77, which meson calls a skip, when the program is not installed.
launcher=$1
shift
if ! command -v "$1" >/dev/null; then
  echo "SKIP: $1 is not installed (Debian: apt-get install perftest ibverbs-utils ibverbs-providers)"
  exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export POLLEN_SHM_DIR="$dir/shm"
port=$((20000 + $$ % 20000))
case $1 in
  rping) server="-s -p $port" client="-c -a 127.0.0.1 -p $port" ;;
  *) server="-p $port" client="-p $port 127.0.0.1" ;;
esac
timeout 100 "$launcher" "$@" $server >"$dir/server" 2>&1 &
# The client starts when the server listens: on TCP, or as a connection manager.
tries=0
until ss -Hltn "sport = :$port" 2>/dev/null | grep -q . || ss -Hlx 2>/dev/null | grep -q "pollen-cm-.*-$port " ||
  [ "$tries" -ge 100 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
timeout 100 "$launcher" "$@" $client >"$dir/client" 2>&1
client_result=$?
wait $!
server_result=$?
if [ $client_result -ne 0 ] || [ $server_result -ne 0 ]; then
  echo "client ended with $client_result, server with $server_result: $*"
  sed 's/^/client: /' "$dir/client"
  sed 's/^/server: /' "$dir/server"
  exit 1
fi
tail -n 3 "$dir/client"
