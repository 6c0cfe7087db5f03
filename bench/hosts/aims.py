"""What several hosts are held to, and whether they meet it."""

from common.report import number
from hosts.rivals import DDP, MPIS, TRAINER, TUTTI

CODECS = {"half": 1.95, "bfloat16": 1.95, "int8": 3.9, "topk:0.01": 20}  # times fewer bytes
DILOCO_BYTES = 100  # times fewer than DDP's
DILOCO_SPEED = 0.95  # of the step without synchronisation
ROWS = 20  # times as long as the row-sparse step takes DDP's dense one
FASTER = 1.4  # than DDP: the MLP, two workers on each of two hosts, 1 Gb/s
BOUND = 1.05  # × the larger of what a worker computes and what the wire takes
LINK = 0.95  # of the probe


def judge(hosts, each, rate, model, columns):
    """Rows for a table, JSON: who, what, value, limit, whether it is met."""
    verdicts = []

    def at_least(column, text, value, limit):
        if value is not None:
            verdicts.append({"column": column, "text": text, "value": value, "limit": f"≥ {limit:g}",
                             "met": value >= limit})

    def at_most(column, text, value, limit):
        if value is not None:
            verdicts.append({"column": column, "text": text, "value": value, "limit": f"≤ {limit:g}",
                             "met": value <= limit})

    for column, cell in columns.items():
        if column != TUTTI and not column.startswith(TRAINER) or "method" in cell:
            continue
        faster = cell["times_faster_than"]
        if model == "bag":
            at_least(column, "DDP's dense step ÷ its", faster.get(DDP), ROWS if rate == "1gbit" else 1)
            continue
        most = FASTER if (hosts, each, rate, model) == (2, 2, "1gbit", "mlp") else 1
        at_least(column, "DDP's step ÷ its", faster.get(DDP), most)
        for rival in MPIS:
            at_least(column, f"{rival}'s step ÷ its", faster.get(rival), 1)
        if each == 1:
            at_most(column, "step ÷ bound", cell["ratio_to_bound"], BOUND)
        if cell["wire_us"] and cell["wire_us"] > (cell["alone_us"] or 0):
            at_least(column, "bytes/s ÷ probe's", cell["share_of_probe"], LINK)
    for column, cell in columns.items():
        method = cell.get("method")
        if method in CODECS:
            at_least(column, "× fewer bytes", cell["times_fewer"].get(TRAINER), CODECS[method])
        elif method and method.startswith("diloco:32") and "int8" in method:
            at_least(column, "× fewer bytes than DDP", cell["times_fewer"].get(DDP), DILOCO_BYTES)
            speed = cell["ratio_to_no_sync"]
            at_least(column, "speed ÷ no sync's", speed and 1 / speed, DILOCO_SPEED)
    return verdicts


def rows(verdicts):
    return [[f"{v['column']}: {v['text']}", number(v["value"]), v["limit"], "met" if v["met"] else "NOT met"]
            for v in verdicts]
