"""Merges the parts' JSON lines: facts_summary.py WORK OUT -> OUT/facts.jsonl, OUT/facts.txt; prints the digest."""
import glob
import json
import os
import sys

work, out = sys.argv[1], sys.argv[2]
facts = []
for name in sorted(glob.glob(os.path.join(work, "*.jsonl"))):
    with open(name, errors="replace") as file:
        for line in file:
            try:
                fact = json.loads(line)
                fact["part"], fact["key"], fact["value"]
            except (ValueError, KeyError, TypeError):
                continue
            facts.append(fact)

hashes = {}
for f in facts:
    if f["part"] == "i" and ".hash." in f["key"]:
        mode, rest = f["key"].split(".hash.")
        case, process = rest.rsplit(".", 1)
        hashes.setdefault((mode, case), {})[process] = f["value"]
for (mode, case), of in sorted(hashes.items()):
    if len(of) > 1:
        facts.append({"part": "i", "key": "%s.processes_equal.%s" % (mode, case), "value": "yes" if len(set(of.values())) == 1 else "NO"})

order = {p: k for k, p in enumerate(["run", "a", "b", "b_dlopen", "c", "d", "e", "f", "g", "h", "i", "j"])}
facts.sort(key=lambda f: order.get(f["part"], 99))


def text(f):
    value = f["value"]
    if isinstance(value, float):
        value = "%.5g" % value
    return "%-9s%s = %s %s" % (f["part"], f["key"], value, f.get("unit", ""))


with open(os.path.join(out, "facts.jsonl"), "w") as file:
    for f in facts:
        file.write(json.dumps(f) + "\n")
with open(os.path.join(out, "facts.txt"), "w") as file:
    for f in facts:
        file.write(text(f).rstrip() + "\n")

chosen = ("device", "sms", "smi.name", "smi.driver", "smi.pcie", "nproc", "cpu =", "thp", "torch ", "nccl", "cudnn",
          "where.", "exception.cuda", "threads_of", "cost.", "is_pinned", "copy_.", "dlopen", "guard", "has_cuda", "from_blob",
          "d2h.memfd.", "h2d.memfd.", "d2h.pageable_memfd.", "d2h.cudaHostAlloc.256", "h2d.cudaHostAlloc.256", "both_directions.memfd.", "register.", "slot_by", "slots", "two_", "kernel_writes_host.memfd.",
          "copy_across", "register_twice", "d2d_memcpy.1024", "host_add.memfd.", "host_fold_adam.memfd.",
          "vmm", "legacy", "event_ipc", "ping_pong_two_processes ", "second_context", "d2d_second", "launch_record_query", "launch_only",
          "cu_time", "differ.", "fused_adam", "composed", "fold_of", "deterministic", "default.distinct", "plain.", "hostid.", "ratio", "backward_alone", "backward_with_d2h.", "d2h_alone", "bytes_equal")
left_out = (".max.", ".hash.", ".example", "_steps", "meminfo", "device_pointer", ".2threads.", ".4threads.", ".gradients", "set_access", "seconds", ".p90.alone", ".p90.second_idle")
plain = lambda f: f["key"] + " "
# Zero differences are told by a list of names; differences by their count.
zero = [f["key"][7:] for f in facts if f["key"].startswith("differ.") and f["value"] == 0]
cu = [f for f in facts if f["key"].startswith("cu_words_differing.fmad_false")]
runs = [f for f in facts if f["part"] == "run"]
lines = ["run      ended well: " + " ".join(f["key"] for f in runs if str(f["value"]).startswith("rc 0"))]
lines += [text(f)[:120] for f in runs if not str(f["value"]).startswith("rc 0")]
lines += [text(f)[:150] for f in facts if f["key"].startswith("error")]
if cu:
    lines.append("f        cu_words_differing.fmad_false*: %d of %d runs without a differing word; worst %s" % (sum(f["value"] == 0 for f in cu), len(cu), max(f["value"] or 0 for f in cu)))
lines += [text(f) for f in facts if f["key"].startswith("cu_words_differing.fmad_true")]
lines.append("f,g      0 differing words: " + " ".join(zero))
for f in facts:
    key = f["key"]
    if key.startswith("error") or f["part"] == "run" or not plain(f).startswith(chosen) or any(word in key + "." for word in left_out):
        continue
    if key.startswith("differ.") and f["value"] == 0 or key.startswith("cu_time.nodes2") and ".blocks" in key:
        continue
    if f["part"] == "b_dlopen" and key.startswith(("where", "exception", "cost", "copy_")):
        continue
    if f["part"] == "i" and ".distinct" in key and f["value"] == 1:
        continue
    lines.append(text(f).rstrip()[:170])
once = sorted({f["key"].split("distinct_of_20.")[0] + f["key"].split("distinct_of_20.")[1] for f in facts if f["part"] == "i" and ".distinct_of_20." in f["key"] and f["value"] == 1})
lines.append("i        the same bytes 20 times: " + " ".join(once))
print("\n".join(lines))
print("(all facts: facts.txt, facts.jsonl; errors: facts.log)")
