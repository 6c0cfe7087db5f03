"""The questions that benchmarks answer, each a module with

    CELL_SECONDS                            what a cell takes, roughly: for the time to go
    cells(tools, settings)                  {name: what measure() needs to know of it}, in their order
    measure(tools, settings, left, watch)   yields (name, value) of each cell of `left`, in that order,
                                            when it is measured; values are what JSON can hold
    result(values)                          what tables and pictures show of the cells that there are,
                                            each with "disturbed" added
    show(result)                            prints the tables
    TIMED                                   False where others' use of the processors changes nothing
"""

from all_reduce import all_reduce
from classifier import classifier
from codec import codec
from convergence import convergence
from embedding import embedding
from fusion import fusion
from hosts import hosts
from kernels import update
from lanes import lanes
from level import level
from memory import memory
from merge import merge
from pipeline import pipeline
from recompute import recompute
from selection import selection
from speeds import speeds
from step import step

QUESTIONS = {"all_reduce": all_reduce, "step": step, "memory": memory, "update": update,
             "selection": selection, "codec": codec, "convergence": convergence, "embedding": embedding,
             "fusion": fusion, "classifier": classifier, "merge": merge, "level": level, "lanes": lanes, "recompute": recompute,
             "pipeline": pipeline, "speeds": speeds, "hosts": hosts}
MODELS = list(dict.fromkeys([*step.MODELS, *memory.MODELS, *hosts.MODELS]))


def is_timed(question):
    return getattr(question, "TIMED", True)
