"""Contestants that train take turns: a short burst of steps each, again and again."""

import random

from common.contestants import Contestant, Failed

WARM_UP = 5
# glibc returns freed gradients to the system or keeps them depending on the order in which they are
# freed: luck that costs some programs thousands of page faults per step. All are told to keep them.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**40)}


def order_of(columns, turn):
    """The columns in another order in each turn, the same in each run: who comes after whom changes, too. One
    that always follows the same other finds what that has left in caches, which is worth some percent."""
    return random.Random(turn).sample(list(columns), len(columns))


def take_turns(commands, workers, settings, watch, missing, at_end=None, one_process=()):
    """{column: rounds of nanoseconds}, and {column: what at_end(column, contestant) gave}, but for None;
    contestants that fail to start join the missing. Columns of `one_process` are one rank of as many threads.
    Fresh processes for each part of the rounds, started in another order, so that where memory happened to land is
    averaged as well: of a build beside itself those that began first have been found 7 % slower."""
    environment = {} if settings.system_malloc else KEEP_MEMORY
    rounds = {column: [] for column in commands}
    answers = {}
    for restart in range(settings.restarts):
        running = {}
        try:
            for column in order_of(commands, f"start {restart}"):
                if column in missing:
                    continue
                try:
                    ranks, threads = (1, workers) if column in one_process else (workers, 1)
                    running[column] = Contestant(column, commands[column], ranks, environment, threads)
                    running[column].ask(f"steps {WARM_UP}")
                except (Failed, OSError) as error:
                    missing[column] = str(error)
            order = [c for c in running if c not in missing]
            for turn in range(max(1, settings.rounds // settings.restarts)):
                with watch.round():
                    for column in order_of(order, restart * settings.rounds + turn):
                        rounds[column].append(running[column].ask(f"steps {settings.steps + 1}")[0][1:])
            for column in order:
                answer = at_end(column, running[column]) if at_end else None
                if answer is not None:
                    answers[column] = answer
        finally:
            for contestant in running.values():
                contestant.close()
    return {c: r for c, r in rounds.items() if r and c not in missing}, answers
