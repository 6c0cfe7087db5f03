"""The facts of bench/gpu/run as text: table.py RESULTS. The exit status is 1 where bytes differ, or are missing."""

import json
import sys


def of(facts, part):
    return [fact for fact in facts if fact["part"] == part]


def exactness(facts):
    """Lines, and whether each model has the same bytes on every worker of every number of them."""
    lines, good = [], True
    for expected in of(facts, "expected"):
        model = expected["model"]
        found = [fact for fact in of(facts, "exact")
                 if fact["model"] == model and fact.get("seed", 1) == 1 and not fact.get("half")]
        resumed = expected.get("resumed", False)
        missing = [n for n in expected["workers"]
                   if not any(fact["workers"] == n and fact.get("resumed", False) == resumed for fact in found)]
        digests = sorted({fact["sha256"] for fact in found})
        if missing:
            text = "NO RESULT of workers: " + ", ".join(map(str, missing))
        elif len(digests) > 1:
            text = "DIFFERENT: " + "; ".join(
                f"workers {n}: " + ", ".join(sorted({f["sha256"][:12] for f in found if f["workers"] == n}))
                for n in expected["workers"])
        else:
            text = f"equal, {digests[0][:12]}…"
        good = good and not missing and len(digests) == 1
        model += ", resumed" if resumed else ""
        lines.append(f"  {model:<24} workers {', '.join(map(str, expected['workers'])):<8} {text}")
    one, other = ([fact["sha256"] for fact in of(facts, "exact") if fact["model"] == "digits" and fact.get("seed", 1) == s]
                  for s in (1, 2))
    control = bool(one and other) and one[0] != other[0]
    lines.append("  digits with another seed: " + ("other bytes, as it has to be" if control else "NOT OTHER BYTES"))
    return lines, good and control


def number(fact, key):
    return f"{fact[key]:>10.2f}" if key in fact else " " * 10


def times(facts):
    lines = ["  model      rows ×  workers   torch ms   Tutti ms  copies ms not hidden   GB/s out    GB/s in"]
    for fact in of(facts, "time"):
        keys = ("plain_ms", "tutti_ms", "copies_ms", "not_hidden", "to_host_gb_per_s", "to_device_gb_per_s")
        lines.append(f"  {fact['model']:<12}{fact['times']:>5}{fact['workers']:>9} " +
                     " ".join(number(fact, key) for key in keys) + (" by NCCL" if fact.get("sum") == "fast" else ""))
    alone = [f for f in of(facts, "time") if f["model"] == "digits" and f["workers"] == 1]
    many = [f for f in of(facts, "time") if f["model"] == "digits" and f["workers"] == 4]
    if alone and many:
        lines.append(f"  digits: one process with all rows takes {alone[0]['plain_ms'] / many[0]['tutti_ms']:.2f} × "
                     "the time of four workers")
    for fact in of(facts, "rival"):
        lines.append(f"  {fact['model']:<12}{fact['times']:>5}{fact['workers']:>9} {number(fact, 'plain_ms')} "
                     f"{number(fact, 'ddp_ms')} with DDP over {fact['backend']}, in Python")
    return lines


def trainer_times(facts):
    found = of(facts, "trainer_time")
    if not found:
        return []
    lines = ["", "A Trainer's steps, medians: backwards alone, with Adam and with torch's fused one on the device; Tutti",
             "  model      rows × workers threads  backwards    Adam ms   fused ms   Tutti ms exposed ms    ÷ bound  host GB/s"
             "   MB more   by hand"]
    keys = ("backwards_ms", "adam_ms", "fused_ms", "tutti_ms", "exposed_ms", "exposed_by_bound", "host_gb_per_s")
    for fact in found:
        lines.append(f"  {fact['model']:<12}{fact['times']:>5}{fact['workers']:>8}{fact['threads']:>8} " +
                     " ".join(number(fact, key) for key in keys) +
                     f"{fact['peak_bytes'] / 1e6:>10.1f}{fact['peak_by_hand_bytes'] / 1e6:>10.1f}")
    return lines


def main(path):
    facts = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            facts.append(json.loads(line))
    lines = []
    for fact in of(facts, "facts"):
        lines += [f"{key}: {value}" for key, value in fact.items() if key != "part"]
    exact, good = exactness(facts)
    lines += ["", "Parameters after some steps (SHA-256)", *exact]
    if of(facts, "time"):
        lines += ["", "Steps, medians", *times(facts)]
    lines += trainer_times(facts)
    faults = of(facts, "faults")
    if faults:
        lines += ["", "Waits left out: runs with other bytes"]
        lines += [f"  {fact['wrong']:>3} of {fact['runs']}  {fact['fault']}" for fact in faults]
    lines += ["", "Parts"]
    ended = [f"  {key}: {value}" for fact in of(facts, "ended") for key, value in fact.items() if key != "part"]
    lines += sorted(ended, key=lambda line: int("0" + line.rpartition("from second ")[2]) if "from second" in line else 1e9)
    print("\n".join(lines))
    return 0 if good else 1


sys.exit(main(*sys.argv[1:]))
