"""Numbers to sentences: percentiles, ratios per round, tables, the machine they belong to."""

import os
import platform
import statistics


def percentile(ordered, share):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(rounds):
    """Times in microseconds; `rounds` are lists of nanoseconds."""
    ordered = sorted(value for samples in rounds for value in samples)
    return {
        "min_us": ordered[0] / 1e3,
        "median_us": statistics.median(ordered) / 1e3,
        "mean_us": statistics.fmean(ordered) / 1e3,
        "p99_us": percentile(ordered, 0.99) / 1e3,
        "samples": len(ordered),
        "round_medians_us": [statistics.median(samples) / 1e3 for samples in rounds],
    }


def per_round(numerator, denominator, combine=lambda a, b: a / b):
    """Median over rounds of what two contestants measured in the same round."""
    pairs = zip(numerator["round_medians_us"], denominator["round_medians_us"])
    return statistics.median(combine(a, b) for a, b in pairs)


def table(header, rows):
    """Columns aligned; the first to the left, others to the right."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def number(value, digits=3):
    """Three significant digits, without exponents; an en dash for what was not measured."""
    if value is None:
        return "–"
    decimals = max(0, digits - len(str(int(abs(value)))))
    if abs(value) < 1:
        decimals = digits
    return f"{value:.{decimals}f}"


def marked(text, entry):
    """A star where others disturbed the measurement: the list of reasons below the tables has it."""
    return f"{text} *" if entry["disturbed"] else str(text)


def all_missing(entries):
    """What any of them lacks, with its remedy."""
    return {what: why for entry in entries for what, why in entry["missing"].items()}


def size_name(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024 or unit == "MiB":
            return f"{count} {unit}"
        count //= 1024


def machine():
    """What the numbers belong to."""
    model = platform.processor()
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}
