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
  rping) server_arguments="-s -p $port" client="-c -a 127.0.0.1 -p $port" ;;
  *) server_arguments="-p $port" client="-p $port 127.0.0.1" ;;
esac
timeout 100 "$launcher" "$@" $server_arguments >"$dir/server" 2>&1 &
server=$!
# The client starts when the server listens: on TCP, or as a connection manager.
tries=0
until ss -Hltn "sport = :$port" 2>/dev/null | grep -q . || ss -Hlx 2>/dev/null | grep -q "pollen-cm-.*-$port " ||
  [ "$tries" -ge 100 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
# perftest tries again itself when the connection manager refuses, which is so until its server has
# come to listen, and crashes in that (4.5): then the client is started anew.
for try in 1 2 3 4 5; do
  timeout 60 "$launcher" "$@" $client >"$dir/client" 2>&1
  client_result=$?
  [ $client_result -ne 0 ] && grep -q REJECTED "$dir/client" || break
  sleep 0.5
done
[ $client_result -eq 0 ] || kill "$server" 2>/dev/null
wait "$server"
server_result=$?
if [ $client_result -ne 0 ] || [ $server_result -ne 0 ]; then
  echo "client ended with $client_result, server with $server_result: $*"
  sed 's/^/client: /' "$dir/client"
  sed 's/^/server: /' "$dir/server"
  exit 1
fi
tail -n 3 "$dir/client"
