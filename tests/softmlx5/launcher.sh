#!/bin/sh
# launcher.sh LAUNCHER: what can't work is said in words.
refuses() {
  expected=$1
  shift
  if out=$("$@" 2>&1); then
    echo "it was not refused: $*"
    exit 1
  fi
  echo "$out" | grep -q "$expected" || { echo "expected \"$expected\" from: $*"; echo "$out"; exit 1; }
}
refuses 'no directory of PATH has it' "$1" no_such_program
refuses 'No such file' "$1" /no/such/program
refuses 'there is no key' "$1" --faults nonsense=1 true
refuses 'SOFTMLX5_LIBRARY' env SOFTMLX5_LIBRARY=/no/such.so "$1" true
refuses '' "$1"
"$1" -- true
