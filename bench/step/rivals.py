"""Who takes part in step and memory, and how each is started."""

import os

HERE = os.path.dirname(os.path.abspath(__file__))

TRAINER = "Tutti Trainer"
TUTTI = "Tutti DataParallel"
GLOO = "Gloo by hand"
NO_SYNC = "no sync, C++"
DDP = "PyTorch DDP"
NO_SYNC_PYTHON = "no sync, Python"
ONE_PROCESS = "one process"
BEFORE = ", before"  # a column of the build that is measured against
NO_PYTHON = "give --torch-python, a Python with torch 2.x"
BASELINE = {TRAINER: NO_SYNC, TUTTI: NO_SYNC, GLOO: NO_SYNC, DDP: NO_SYNC_PYTHON}


def builds(tools):
    """The build, and the one that it is measured against, each with what its columns' names end in."""
    return [(tools, ""), *([(tools.before, BEFORE)] if tools.before else [])]


def rivals(tools, model, optimizer, workers):
    """{column: commands} of all that can run, and {column: remedy} of what is missing. Where there is a build to
    measure against, these are Tutti of both builds, and what does not synchronise."""
    present, missing = {}, {}

    def add(column, executable, commands, remedy):
        if executable and os.path.exists(executable):
            present[column] = commands
        else:
            missing[column] = remedy

    what = ["{socket}", model, optimizer]
    for build, when in builds(tools):
        add(TRAINER + when, build.program("bench_step_trainer"), trainer(build, model, workers, workers),
            "build with -DTUTTI_TORCH=ON")
        add(TUTTI + when, build.program("bench_step_tutti"), launch(build, workers, "bench_step_tutti", *what),
            "build with -DTUTTI_TORCH=ON")
    add(NO_SYNC, tools.program("bench_step_barrier"), launch(tools, workers, "bench_step_barrier", *what),
        "build with -DTUTTI_TORCH=ON")
    if tools.before:
        return present, missing
    program = tools.program("bench_step_gloo")
    add(GLOO, program, [[program, *what, *rank] for rank in ranks(workers)], "install libgloo-dev and build again")
    for column, way in ((NO_SYNC_PYTHON, "barrier"), (DDP, "ddp")):
        add(column, tools.torch_python, python(tools, workers, model, optimizer, way), NO_PYTHON)
    return present, missing


def one_process(tools, model, optimizer, workers):
    """{column: commands}: as many threads as there are workers, all of their batches in one, no Tutti."""
    program = tools.program("bench_step_process")
    return {ONE_PROCESS: [[program, "{socket}", model, optimizer, str(workers)]]}


def ranks(workers):
    """What a program that no launcher starts is told of itself."""
    return [[str(rank), str(workers), "{store}"] for rank in range(workers)]


def python(tools, workers, model, optimizer, way):
    """ddp.py, with or without synchronisation."""
    script = os.path.join(HERE, "ddp.py")
    return [[tools.torch_python, script, "{socket}", model, optimizer, *rank, way] for rank in ranks(workers)]


def launch(tools, workers, name, *arguments, options=()):
    return [[tools.program("tutti"), "run", "-n", str(workers), *options, "--", tools.program(name), *arguments]]


def trainer(tools, model, workers, shards):
    """The Trainer brings its own Adam, whatever the others' is called."""
    return launch(tools, workers, "bench_step_trainer", "{socket}", model, str(shards))


def bytes_per_step(trainer):
    """What a running Trainer has sent, and what dense gradients would have taken."""
    sent, dense, steps = trainer.ask("traffic")[0]
    return sent / steps, dense / steps
