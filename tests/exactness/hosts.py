#!/usr/bin/env python3
"""The examples on hosts that are network namespaces of this machine, beside one host: `parameters sha256` of each
must be the same. script/exactness --hosts builds them and runs this, as root.

    hosts.py [--build DIR] [--only METHOD …] [--layouts LAYOUT …] [--links LINK …] [--with NAME=VALUE …]

A column of the link "mpi" is started by `mpirun`, all others as by torchrun. Prints a table; what the program refuses is "refused", with its sentence below. The exit status is 1 where a sum
differs or a run fails, 77 where hosts cannot be made.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(os.path.dirname(HERE))
SKIPPED = 77
DEADLINE = 300  # seconds of a run
TEXT = os.path.join(PROJECT, "LICENSE")
ENTER = os.path.join(PROJECT, "bench", "hosts", "enter.sh")
LAYOUTS = {"1x4": (4,), "2x2": (2, 2), "4x1": (1, 1, 1, 1), "2+1+1": (2, 1, 1)}  # workers of each host
SMALL = ("--text", TEXT, "--seed", "5", "--steps", "8", "--quiet")
LETTERS = ("char_lm", *SMALL, "--rows", "3", "--length", "12", "--hidden", "20", "--sample", "0")
SHARDS = (*LETTERS, "--shards", "5")
METHODS = {
    "dense": SHARDS,
    "micro-batches": (*LETTERS, "--micro-batches", "6"),
    "row-sparse": ("word_vectors", *SMALL, "--shards", "5", "--dimension", "10", "--batch", "20", "--show", "0"),
    "topk": (*SHARDS, "--codec", "topk:0.05", "--logical-workers", "2"),  # on 4 × 1 each of two hosts
    "int8": (*SHARDS, "--codec", "int8", "--logical-workers", "4"),
    "diloco": (*SHARDS, "--averaging", "diloco:3", "--logical-workers", "4"),
    "diloco, int8": (*SHARDS, "--averaging", "diloco:3,int8", "--logical-workers", "4"),
    "diloco, overlap": (*SHARDS, "--averaging", "diloco:4,warm-up=1,overlap=2", "--logical-workers", "4"),
    "diloco, int8, overlap": (*SHARDS, "--averaging", "diloco:4,fragments=2,warm-up=1,int8,overlap=1",
                              "--logical-workers", "4"),
    "averaging of micro-batches": (*LETTERS, "--micro-batches", "6", "--averaging", "diloco:3"),
}
REFUSED = re.compile(r"[^\n]*this version of Tutti has no[^\n]*")
SUM = re.compile(r"parameters sha256 ([0-9a-f]{64})")
# Workers of each host as under torchrun: the words of $each are how many.
WORKERS_OF_A_HOST = """
first=0 host=0
for count in $each; do
  [ $host -lt $HOST_RANK ] && first=$((first + count)) || break
  host=$((host + 1))
done
for local in $(seq 0 $((count - 1))); do
  RANK=$((first + local)) WORLD_SIZE=$world LOCAL_RANK=$local LOCAL_WORLD_SIZE=$count GROUP_RANK=$HOST_RANK "$@" &
  all="$all $!"
done
for one in $all; do wait $one || status=1; done
exit ${status:-0}"""

# The same where messages go over MPI, whose launcher starts all from the first host: the others are entered as
# by ssh (bench/hosts/enter.sh).
WORKERS_BY_MPIRUN = """
echo $$ >$folder/$HOST_RANK.new && mv $folder/$HOST_RANK.new $folder/$HOST_RANK
if [ $HOST_RANK != 0 ]; then
  until [ -e $folder/over ]; do sleep 0.1; done
  exit 0
fi
trap 'touch $folder/over' EXIT
host=0
for count in $each; do
  until [ -e $folder/$host ]; do sleep 0.1; done
  hosts=$hosts${hosts:+,}10.77.0.$((host + 1)):$count
  TUTTI_BENCH_HOSTS="$TUTTI_BENCH_HOSTS 10.77.0.$((host + 1))=$(cat $folder/$host)"
  host=$((host + 1))
done
export TUTTI_BENCH_HOSTS
mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent $enter --mca btl_tcp_if_include eth0 \
  --mca oob_tcp_if_include eth0 --mca mpi_yield_when_idle 1 --host $hosts -n $world \
  -x TUTTI_HUB -x TUTTI_TOKEN -x TUTTI_LINK -x OMP_NUM_THREADS "$@"
"""


class NoHosts(Exception):
    """Hosts cannot be made here; the text is the reason."""


class Machine:
    """Runs a program of the build on a layout."""

    def __init__(self, build, script):
        self._build = build
        self._script = script

    def run(self, layout, words, environment):
        """Exit status, and all that was printed."""
        program = [os.path.join(self._build, "bin", words[0]), *words[1:]]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        if len(layout) == 1:
            command = [os.path.join(self._build, "bin", "tutti"), "run", "-n", str(layout[0]), "--", *program]
        else:
            variables.update(TUTTI_HUB="10.77.0.1:29600", TUTTI_TOKEN="of-this-matrix", world=str(sum(layout)),
                             each=" ".join(map(str, layout)))
            by_mpi = variables.get("TUTTI_LINK") == "mpi"
            command = [self._script, "--hosts", str(len(layout)), "sh", "-c",
                       WORKERS_BY_MPIRUN if by_mpi else WORKERS_OF_A_HOST, "sh", *program]
        with tempfile.TemporaryDirectory() as folder:
            variables.update(folder=folder, enter=ENTER)
            done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", timeout=DEADLINE, check=False)
        if len(layout) > 1 and done.returncode == SKIPPED:
            raise NoHosts(done.stdout.strip())
        return done.returncode, done.stdout


def outcome(status, output):
    """What a cell of the table shows, and the sum or the sentence behind it."""
    found = SUM.findall(output)
    if status == 0 and len(set(found)) == 1:
        return found[0][:12], found[0]
    refusal = REFUSED.search(output)
    if status != 0 and refusal:
        return "refused", re.sub(r"^host\d+: ", "", refusal.group(0)).strip()
    return "FAILED", f"status {status}: {output.strip()[-1500:]}"


def places_of(layouts, links, environment):
    """{column: (layout, variables)}: of several hosts one for each link."""
    places = {}
    for name in layouts:
        several = len(LAYOUTS[name]) > 1
        for link in links if several and links else [None]:
            variables = {**environment, "TUTTI_LINK": link} if link else environment
            places[f"{name} {link}" if link else name] = (LAYOUTS[name], variables)
    return places


def compare(machine, methods, places, print_=print):
    """Prints a row for each method; whether none failed and all that ran gave one sum."""
    width = max(map(len, methods)) + 2
    print_("".ljust(width) + "  ".join(name.ljust(12) for name in places) + "  equal")
    notes, all_equal = {}, True
    for name, words in methods.items():
        shown, sums = [], []
        for place, (layout, environment) in places.items():
            text, behind = outcome(*machine.run(layout, words, environment))
            shown.append(text)
            if text in ("refused", "FAILED"):
                notes.setdefault(behind, []).append(f"{name} on {place}")
            else:
                sums.append(behind)
        good = len(set(sums)) == 1 and "FAILED" not in shown
        all_equal = all_equal and good
        verdict = ("NO: they differ" if len(set(sums)) > 1 else "NO" if not good else
                   "yes" if len(sums) > 1 else "one alone")
        print_(name.ljust(width) + "  ".join(text.ljust(12) for text in shown) + "  " + verdict)
    for behind, where in notes.items():
        print_(f"{', '.join(where)}: {behind}")
    return all_equal


def variable(text):
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", action="store_true", help=argparse.SUPPRESS)  # script/exactness passes it on
    parser.add_argument("--build", default=os.path.join(PROJECT, "build"))
    parser.add_argument("--script", default=os.path.join(PROJECT, "script", "hosts"), help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), help="default: all")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="default: all")
    parser.add_argument("--links", nargs="+", default=[], metavar="LINK",
                        help="each layout with each value of TUTTI_LINK, if this version reads that variable")
    parser.add_argument("--with", dest="variables", nargs="+", type=variable, default=[], metavar="NAME=VALUE",
                        help="of the workers' environment")
    arguments = parser.parse_args(words)
    machine = Machine(os.path.abspath(arguments.build), arguments.script)
    print("parameters sha256 of 4 workers on hosts that are network namespaces; 2+1+1: three, of 2, 1 and 1 workers",
          flush=True)
    try:
        equal = compare(machine, {name: METHODS[name] for name in arguments.only},
                        places_of(arguments.layouts, arguments.links, dict(arguments.variables)),
                        lambda line: print(line, flush=True))
    except NoHosts as reason:
        print(reason)
        sys.exit(SKIPPED)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
