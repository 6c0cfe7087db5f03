"""What the ways of training are held to, and whether they meet it."""

from common.report import number
from step.rivals import TRAINER, TUTTI

ALL = ("mlp", "lstm", "convolution", "embedding")

# (column, quantity): its name in the table, {model: at most}, optimizers of the others that it is judged by.
# The Trainer updates in a fused pass of its own: only others with a fused update are its equals.
AIMS = {
    (TRAINER, "ratio_to_no_sync"): (
        "step ÷ no sync's", {"mlp": 0.95, "embedding": 1.0, "lstm": 1.0, "convolution": 1.05}, ("fused",)),
    (TRAINER, "ratio_to_ddp"): (
        "step ÷ DDP's", {"mlp": 0.5, "embedding": 0.5, "lstm": 1.0, "convolution": 1.0}, ("fused",)),
    (TUTTI, "ratio_to_ddp"): ("step ÷ DDP's", dict.fromkeys(ALL, 1.0), ("adam", "fused")),
    (TUTTI, "added_share_of_ddp"): ("added ÷ what DDP adds", {"mlp": 0.2}, ("adam", "fused")),
}


def judge(model, optimizer, cells):
    """Each quantity that was measured, and its aim where there is one."""
    verdicts = []
    for (column, quantity), (text, limits, optimizers) in AIMS.items():
        value = cells.get(column, {}).get(quantity)
        if value is None:
            continue
        at_most = limits.get(model) if optimizer in optimizers else None
        verdicts.append({"column": column, "quantity": quantity, "text": text, "value": value,
                         "at_most": at_most, "met": None if at_most is None else value <= at_most})
    return verdicts


def rows(verdicts):
    """For a table: who, what, value, aim, verdict."""
    words = {True: "met", False: "NOT met", None: ""}
    return [[f"{v['column']}: {v['text']}", number(v["value"]),
             "" if v["at_most"] is None else f"≤ {v['at_most']:g}", words[v["met"]]] for v in verdicts]
