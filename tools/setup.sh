# What apps/run and tests/run share: finding what the machine lacks, installing it, building.
# Sourced by bash with `set -euo pipefail` and inherit_errexit, in the top directory of the tree.

cxx=${CXX:-c++} # as meson has it

# Debian's package, and what shows that it is there: command:NAME, module:NAME (of pkg-config),
# header:NAME, file:PATH, clang:FLAG (Clang links with it). On other distributions the names on the right say what to look for.
build_needs=(
  'meson command:meson'
  'ninja-build command:ninja'
  "g++ command:${cxx%% *}"
  'pkg-config command:pkg-config'
  'libfmt-dev module:fmt'
  'libspdlog-dev module:spdlog'
  'nlohmann-json3-dev module:nlohmann_json'
  'libcli11-dev header:CLI/CLI.hpp'
  'libhwloc-dev module:hwloc'
  'libnuma-dev module:numa'
  'libpcap-dev module:libpcap'
  'zlib1g-dev module:zlib'
  'libibverbs-dev module:libmlx5'
)
test_needs=(
  'doctest-dev header:doctest/doctest.h'
  'libbenchmark-dev module:benchmark'
  'tshark command:tshark'
  'valgrind command:valgrind'
  'clang command:clang++'
  'clang-format command:clang-format'
  'python3 command:python3'
  'iproute2 command:ip'
  'procps command:ps'
  'make command:make'
  'ibverbs-providers file:/etc/libibverbs.d/mlx5.driver'
  'ibverbs-utils command:ibv_devinfo'
  'perftest command:ib_send_bw'
  'rdmacm-utils command:rping'
  'python3-pyverbs file:/usr/lib/python3/dist-packages/pyverbs'
)

say() { printf '%s\n' "$*" >&2; }
die() { say "$0: $*"; exit 1; }

has() {
  case $1 in
    command:*) command -v "${1#*:}" ;;
    module:*) pkg-config --exists "${1#*:}" ;;
    file:*) [[ -e ${1#*:} ]] ;;
    clang:*) echo 'int main() {}' | clang++ "${1#*:}" -x c++ - -o /dev/null ;;
    header:*) printf '#include <%s>\n' "${1#*:}" | $cxx -fsyntax-only -x c++ - ;;
  esac >/dev/null 2>&1
}

# Installs, of the needs given, those that are not met.
install_needs() {
  local need packages=() proofs=()
  for need; do
    has "${need#* }" || { packages+=("${need% *}"); proofs+=("${need#* }"); }
  done
  ((${#packages[@]})) || return 0

  if ! command -v apt-get >/dev/null; then
    die "this machine lacks ${proofs[*]}. Install them by your distribution's means;" \
      "Debian's packages are called ${packages[*]}."
  fi
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      die "packages are missing, and installing them takes root. As root:" \
        "apt-get update && apt-get install --no-install-recommends ${packages[*]}"
    install=(sudo "${install[@]}")
  fi
  say "Installing ${packages[*]}"
  mkdir -p build/logs
  local log=build/logs/packages.log
  if ! { "${install[@]}" update && "${install[@]}" install -y --no-install-recommends "${packages[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    die "apt-get could not install them; all it said is in $log"
  fi
  for need in "${proofs[@]}"; do
    has "$need" || die "$need is still missing after installing ${packages[*]}"
  done
}

# Meson 1.0 and a compiler of C++20: older distributions have neither.
check_tools() {
  local meson gcc
  meson=$(meson --version)
  ((${meson%%.*} >= 1)) ||
    die "Meson 1.0 or newer is needed, this is $meson. Take Debian 12, Ubuntu 24.04 or newer, or a newer Meson."
  gcc=$($cxx -dumpversion)
  if [[ $($cxx --version) != *clang* ]] && ((${gcc%%.*} < 12)); then
    die "GCC 12 or newer is needed, this is $gcc. Take Debian 12, Ubuntu 24.04 or newer, or set CXX to a newer one."
  fi
}
