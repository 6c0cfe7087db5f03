"""Draws a benchmark's JSON file: plot.py RESULT.json PICTURE.png (needs matplotlib)."""

import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from all_reduce.all_reduce import names_of
from common.record import Record, view
from common.report import number, size_name
from memory.memory import MODELS as MEMORY_MODELS
from questions import QUESTIONS
from selection.selection import RIVALS, SHARES
from step.step import MODELS, OPTIMIZERS

COLOURS = {
    "Tutti arena": "#0b6e4f", "Tutti staged": "#53a548", "Tutti tensor": "#9bc53d",
    "Tutti Trainer": "#0b6e4f", "Tutti Trainer, 8 shards": "#74c69d", "Tutti DataParallel": "#53a548",
    "probe": "#222222", "Open MPI": "#d1495b", "Open MPI 5": "#8f2d56", "MPICH 5": "#5e548e", "Gloo": "#edae49", "Gloo by hand": "#edae49",
    "PyTorch DDP": "#d1495b", "no sync, C++": "#a9b4c2", "no sync, Python": "#cbd2da", "one process": "#5f6f81",
    "select_largest": "#0b6e4f", "at::topk": "#d1495b", "std::nth_element": "#edae49",
}


def finish(figure, result, picture):
    machine = result["run"]
    figure.get_layout_engine().set(rect=(0, 0.03, 1, 0.97))
    figure.text(0.995, 0.005, f"{machine['cpu']}, {machine['cores']} cores", ha="right", va="bottom",
                fontsize=7, color="#666666")
    if not result["quotable"]:
        figure.text(0.005, 0.005, "not to be quoted", va="bottom", fontsize=7, color="#d1495b")
    figure.savefig(picture, dpi=160)


def bare(axes):
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_all_reduce(result, picture):
    groups = result["groups"]
    figure, panels = plt.subplots(1, len(groups), figsize=(5.2 * len(groups), 4.2), sharey=True,
                                  squeeze=False, layout="constrained")
    for axes, group in zip(panels[0], groups):
        sizes = [entry["bytes"] for entry in group["sizes"]]
        for name in names_of(group):
            values = [entry["columns"][name]["algbw_gbps"] for entry in group["sizes"]]
            ours = name.startswith("Tutti")
            axes.plot(sizes, values, label=name, color=COLOURS[name], linewidth=2.2 if ours else 1.4,
                      linestyle="--" if name == "probe" else "-", marker="o", markersize=3)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes[::2], [size_name(s) for s in sizes[::2]], fontsize=8)
        crowded = " (more workers than cores)" if group["oversubscribed"] else ""
        axes.set_title(f"{group['workers']} workers{crowded}", fontsize=10)
        axes.grid(alpha=0.25, linewidth=0.5)
        bare(axes)
    panels[0][0].set_ylabel("all-reduce, float32 sum: GB/s (size / time)")
    panels[0][0].legend(fontsize=8, frameon=False)
    finish(figure, result, picture)


def bars(axes, names, values, texts):
    axes.barh(names[::-1], values[::-1], color=[COLOURS[n] for n in names[::-1]], height=0.7)
    for place, (value, text) in enumerate(zip(values[::-1], texts[::-1])):
        axes.text(value, place, " " + text, va="center", fontsize=7.5)
    axes.set_xlim(right=max(values) * 1.35)
    axes.tick_params(labelsize=8)
    bare(axes)


def draw_step(result, picture):
    entries = result["entries"]
    places = list(dict.fromkeys((entry["workers"], entry["model"]) for entry in entries))
    figure, panels = plt.subplots(len(places), len(OPTIMIZERS), figsize=(10, 1.75 * len(places) + 0.4),
                                  squeeze=False, layout="constrained")
    for entry in entries:
        place = places.index((entry["workers"], entry["model"]))
        axes = panels[place][list(OPTIMIZERS).index(entry["optimizer"])]
        cells = entry["columns"]
        names = [n for n in COLOURS if n in cells]
        values = [cells[n]["median_us"] / 1e3 for n in names]
        texts = [number(v) + ratio_text(cells[n]["ratio_to_no_sync"]) for n, v in zip(names, values)]
        if names:
            bars(axes, names, values, texts)
        if axes is panels[place][0]:
            crowded = "\n(more than cores)" if entry["oversubscribed"] else ""
            axes.set_ylabel(f"{entry['workers']} workers{crowded}", fontsize=8)
        axes.set_title(f"{MODELS[entry['model']]}, {OPTIMIZERS[entry['optimizer']]}", fontsize=9, loc="left")
    figure.supxlabel("ms per step (× the step without synchronisation)", fontsize=9)
    finish(figure, result, picture)


def ratio_text(ratio):
    return "" if ratio is None else f" ({number(ratio)} ×)"


def draw_memory(result, picture):
    entries = result["entries"]
    figure, panels = plt.subplots(1, len(entries), figsize=(3 + 3 * len(entries), 4), squeeze=False,
                                  layout="constrained",
                                  width_ratios=[1 + len({r["workers"] for r in e["rows"]}) for e in entries])
    for axes, entry in zip(panels[0], entries):
        copies = {(r["column"], r["workers"]): r["copies"] for r in entry["rows"] if "copies" in r}
        names = [n for n in COLOURS if any(column == n for column, _ in copies)]
        counts = sorted({workers for _, workers in copies})
        for place, name in enumerate(names):
            width = 0.85 / len(names)
            at = [x + (place - (len(names) - 1) / 2) * width for x in range(len(counts))]
            heights = [copies.get((name, workers), 0) for workers in counts]
            bar = axes.bar(at, heights, width, label=name, color=COLOURS[name])
            axes.bar_label(bar, [f"{h:.1f}" if h else "" for h in heights], fontsize=5.5)
        axes.set_xticks(range(len(counts)), counts)
        axes.set_title(MEMORY_MODELS[entry["model"]], fontsize=8, loc="left")
        bare(axes)
    panels[0][0].set_ylabel("held by all workers together, Adam:\ncopies of the parameters", fontsize=9)
    panels[0][0].legend(fontsize=7, frameon=False)
    figure.supxlabel("workers", fontsize=9)
    finish(figure, result, picture)


def draw_update(result, picture):
    entries = result["entries"]
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    for place, (name, key) in enumerate((("Tutti Trainer", "sweep_GB/s"), ("probe", "bound_GB/s"))):
        heights = [entry[key] for entry in entries]
        bar = axes.bar([x + 0.4 * (place - 0.5) for x in range(len(entries))], heights, 0.4, label=name,
                       color=COLOURS[name])
        axes.bar_label(bar, [number(h) for h in heights], fontsize=7)
    axes.set_xticks(range(len(entries)), [f"{e['nodes']}\n{number(e['of_bound'])} ×" for e in entries])
    axes.set_xlabel("nodes that are folded; × the probe's speed, median of pairs", fontsize=9)
    axes.set_ylabel("fold + Adam, one thread: GB/s", fontsize=9)
    axes.set_ylim(top=1.25 * max(entry["bound_GB/s"] for entry in entries))
    axes.legend(fontsize=7, frameon=False, loc="upper left", ncols=2)
    bare(axes)
    finish(figure, result, picture)


def draw_selection(result, picture):
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    groups = []
    for entry in result["entries"]:
        for share, text in SHARES.items():
            cells = entry["largest"][share]
            groups.append((f"{entry['millions']} M\n{text}", {
                "select_largest": cells["sweeps"], **{r: cells[r + " sweeps"] for r in RIVALS}}))
    for place, name in enumerate(("select_largest", *RIVALS)):
        heights = [cells[name] for _, cells in groups]
        bar = axes.bar([x + 0.28 * (place - 1) for x in range(len(groups))], heights, 0.28, label=name,
                       color=COLOURS[name])
        axes.bar_label(bar, [number(h, 2) for h in heights], fontsize=6.5)
    axes.axhline(1, color="#222222", linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.set_ylim(0.5, 3 * max(max(cells.values()) for _, cells in groups))
    axes.set_xticks(range(len(groups)), [text for text, _ in groups], fontsize=8)
    axes.set_xlabel("elements, share selected", fontsize=9)
    axes.set_ylabel("k largest magnitudes, one thread:\ntimes of reading the array once", fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc="upper left", ncols=3)
    bare(axes)
    finish(figure, result, picture)


def draw_codec(result, picture):
    """What a step takes on one host and over links between hosts, method by method."""
    entries = result["entries"]
    figure, panels = plt.subplots(1, len(entries), figsize=(1.2 + 3.1 * len(entries), 3.6), squeeze=False,
                                  layout="constrained")
    for axes, entry in zip(panels[0], entries):
        methods = list(entry["methods"])
        links = list(entry["methods"][methods[0]]["link_ms"])
        places = range(1 + len(links))
        for shade, method in enumerate(methods):
            cell = entry["methods"][method]
            times = [cell["ms"]] + [cell["link_ms"][g] for g in links]
            axes.plot(places, times, marker="o", markersize=3, linewidth=1.6,
                      color=plt.cm.viridis(shade / len(methods)),
                      label=f"{method} ({number(cell['times_fewer'])} × fewer bytes)")
        axes.set_yscale("log")
        axes.set_xticks(places, ["one host"] + [f"{g} Gb/s" for g in links], fontsize=7)
        axes.set_title(MODELS[entry["model"]], fontsize=8, loc="left")
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.legend(fontsize=5.5, frameon=False)
        bare(axes)
    panels[0][0].set_ylabel(f"ms per step; links: modelled, {result['hosts']} hosts", fontsize=9)
    finish(figure, result, picture)


def draw_columns(result, picture, ratio, beside, log=False):
    """A bar for each contestant, with its time and how many times that of `beside` it is."""
    columns = list(result["columns"])[::-1]
    figure, axes = plt.subplots(figsize=(6.4, 1 + 0.3 * len(columns)), layout="constrained")
    heights = [result["columns"][c]["median_us"] / 1e3 for c in columns]
    ours = ("Tutti", "DataParallel", "Trainer")
    bar = axes.barh(columns, heights, 0.6, color=["#2a788e" if c.startswith(ours) else "#bbbbbb" for c in columns])
    axes.bar_label(bar, [f"{number(h)} ms, {number(result['columns'][c][ratio])} ×"
                         for c, h in zip(columns, heights)], fontsize=7, padding=3)
    if log:
        axes.set_xscale("log")
    axes.set_xlim(right=(4 if log else 1.25) * max(heights))
    axes.tick_params(labelsize=8)
    axes.set_xlabel(f"ms per step, {result['workers']} workers; × {beside}", fontsize=9)
    bare(axes)
    finish(figure, result, picture)


def draw_embedding(result, picture):
    draw_columns(result, picture, "to_rows", "row-sparse", log=True)


def draw_fusion(result, picture):
    draw_columns(result, picture, "to_no_sync", "no sync", log=True)


def draw_level(result, picture):
    """What a step takes under each level, as a multiple of what it takes without."""
    entries = [entry for entry in result["entries"] if entry["columns"]]
    figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
    levels = list(dict.fromkeys(level for entry in entries for level in entry["columns"]))
    for place, level in enumerate(levels):
        at = [k + place / (len(levels) + 1) for k, entry in enumerate(entries) if level in entry["columns"]]
        bars = axes.bar(at, [e["columns"][level]["to_native"] or 0 for e in entries if level in e["columns"]],
                        width=0.9 / (len(levels) + 1), label=level)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks([k + 0.3 for k in range(len(entries))], [entry["model"] for entry in entries], fontsize=8)
    axes.set_ylabel("step ÷ native", fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    bare(axes)
    finish(figure, result, picture)


def draw_hosts(result, picture):
    """A step on each layout of hosts, with the bytes that it sends."""
    entries = [entry for entry in result["entries"] if entry["columns"]]
    layouts = list(dict.fromkeys(entry["layout"] for entry in entries))
    models = list(dict.fromkeys(entry["model"] for entry in entries))
    figure, panels = plt.subplots(max(1, len(layouts)), max(1, len(models)), squeeze=False, layout="constrained",
                                  figsize=(1 + 4.2 * max(1, len(models)), 0.6 + 1.8 * max(1, len(layouts))))
    for axes in panels.flat:
        axes.set_visible(False)
    for entry in entries:
        axes = panels[layouts.index(entry["layout"])][models.index(entry["model"])]
        axes.set_visible(True)
        names = list(entry["columns"])
        values = [entry["columns"][name]["median_us"] / 1e3 for name in names]
        texts = [f"{number(v)} ms, {number(entry['columns'][n]['busiest'] / 1e6)} MB" for n, v in zip(names, values)]
        colours = [COLOURS.get(name, "#74c69d" if name.startswith("Tutti") else "#a9b4c2") for name in names]
        axes.barh(names[::-1], values[::-1], color=colours[::-1], height=0.7)
        for place, (value, text) in enumerate(zip(values[::-1], texts[::-1])):
            axes.text(value, place, " " + text, va="center", fontsize=7)
        axes.set_xlim(right=max(values) * 1.6)
        axes.tick_params(labelsize=7)
        axes.set_title(f"{entry['hosts']} hosts × {entry['each']}, {entry['rate']}: {entry['model']}", fontsize=8,
                       loc="left")
        bare(axes)
    figure.supxlabel("ms per step; MB that leave the busiest host per step", fontsize=9)
    finish(figure, result, picture)


def draw_merge(result, picture):
    """What merging lists takes a host, with the link, over the number of hosts."""
    figure, axes = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
    hosts = [entry["hosts"] for entry in result["entries"]]
    for way, colour in (("region split", "#2a788e"), ("all-gather", "#d1495b")):
        cells = [entry["ways"][way] for entry in result["entries"]]
        axes.plot(hosts, [cell["median_us"] / 1e3 for cell in cells], marker="o", markersize=3, color=colour,
                  label=f"{way}: merging")
        axes.plot(hosts, [cell["link_ms"] for cell in cells], marker="o", markersize=3, color=colour, linestyle="--",
                  label=f"… with a link of {result['link_gbps']} Gb/s, modelled")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(hosts, [str(h) for h in hosts])
    axes.set_xlabel(f"hosts, each with a list of {result['share']:.0%} of {result['elements'] >> 20} M elements",
                    fontsize=9)
    axes.set_ylabel("ms per host", fontsize=9)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.legend(fontsize=7, frameon=False)
    bare(axes)
    finish(figure, result, picture)


def draw_classifier(result, picture):
    """Milliseconds of a step, by classes."""
    columns = list(dict.fromkeys(column for entry in result["entries"] for column in entry["columns"]))
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for column in columns:
        points = [(entry["classes"], entry["columns"][column]["median_us"] / 1e3) for entry in result["entries"]
                  if column in entry["columns"]]
        axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1, label=column,
                  linestyle="-" if column.startswith("Tutti") else "--")
    limits = [(entry["classes"], max(limit["products_us"], limit["streams_us"]) / 1e3)
              for entry in result["entries"] for column, limit in entry["bounds"].items() if column == "bound, 1"]
    if limits:
        axes.plot(*zip(*limits), linewidth=1, linestyle=":", color="#222222", label="bound, 1 worker, all classes")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("classes", fontsize=9)
    axes.set_ylabel("ms per step", fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    bare(axes)
    finish(figure, result, picture)


def draw_lanes(result, picture):
    """How many times faster than with one lane the same calls are."""
    entries = result["entries"][::-1]
    figure, axes = plt.subplots(figsize=(6.4, 1 + 0.4 * len(entries)), layout="constrained")
    for place, (lanes, colour) in enumerate((("4", "#0b6e4f"), ("2", "#74c69d"))):
        at = [k + 0.38 * (place - 0.5) for k in range(len(entries))]
        bar = axes.barh(at, [entry["faster"][lanes] for entry in entries], 0.38, label=f"{lanes} lanes", color=colour)
        axes.bar_label(bar, [number(entry["faster"][lanes]) for entry in entries], fontsize=7, padding=3)
    axes.axvline(1, color="#222222", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(entries)), [entry["name"] for entry in entries], fontsize=8)
    axes.set_xlabel("time with 1 lane ÷ time, all-reduces of two workers", fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    bare(axes)
    finish(figure, result, picture)


def draw_speeds(result, picture):
    """A step's time with equal shares and with shares by speed."""
    entries = result["entries"]
    figure, axes = plt.subplots(figsize=(6.4, 1.4 * len(entries)), layout="constrained")
    for place, (shares, colour) in enumerate((("by speed", "#0b6e4f"), ("equal", "#888888"))):
        at = [k + 0.38 * (place - 0.5) for k in range(len(entries))]
        times = [entry["times"][shares]["median_us"] / 1e3 for entry in entries]
        bar = axes.barh(at, times, 0.38, label=shares, color=colour)
        axes.bar_label(bar, [number(time) for time in times], fontsize=7, padding=3)
    axes.set_yticks(range(len(entries)), [entry["name"] for entry in entries], fontsize=8)
    axes.set_xlabel("ms, five steps", fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    bare(axes)
    finish(figure, result, picture)


def draw_recompute(result, picture):
    """Memory against time of each way, beside the plain run."""
    figure, panels = plt.subplots(1, len(result["entries"]), figsize=(5.4 * len(result["entries"]), 4),
                                  layout="constrained", squeeze=False)
    for axes, entry in zip(panels[0], result["entries"]):
        for (side, ways), colour in zip(entry["sides"].items(), ("#0b6e4f", "#c1666b")):
            points = sorted((values["bytes"] / 1e6, values["slower"], way) for way, values in ways.items())
            axes.plot(*zip(*(point[:2] for point in points)), "o-", color=colour, label=side)
            for memory, slower, way in points:
                axes.annotate(way, (memory, slower), fontsize=6, xytext=(4, 4), textcoords="offset points")
        axes.set_xlim(left=0)
        axes.set_xlabel(f"MB of a step: {entry['name']}", fontsize=9)
        axes.set_ylabel("time ÷ that of the plain run", fontsize=9)
        axes.legend(fontsize=7, frameon=False)
        bare(axes)
    finish(figure, result, picture)


def draw_pipeline(result, picture):
    """Milliseconds of a step, and what the schedule allows."""
    columns = [(column, cell) for entry in result["entries"] for column, cell in entry["columns"].items()][::-1]
    figure, axes = plt.subplots(figsize=(6.4, 1 + 0.36 * len(columns)), layout="constrained")
    for at, (column, cell) in enumerate(columns):
        bar = axes.barh(at, cell["median_us"] / 1e3, 0.7, color="#74c69d" if column.startswith("Tutti") else "#c1a6a7")
        text = "" if cell["share"] is None else f"{number(cell['share'])} of what the schedule allows"
        axes.bar_label(bar, [text], fontsize=7, padding=3)
        if cell["ideal_us"]:
            axes.plot([cell["ideal_us"] / 1e3] * 2, [at - 0.35, at + 0.35], color="#222222", linewidth=1.2)
    axes.set_yticks(range(len(columns)), [column for column, _ in columns], fontsize=8)
    axes.set_xlabel("ms per step of 8 micro-batches, 2 workers; line: what the schedule allows", fontsize=9)
    axes.margins(x=0.35)
    axes.set_xlim(left=0)
    bare(axes)
    finish(figure, result, picture)


def draw_convergence(result, picture):
    figure, panels = plt.subplots(1, 3, figsize=(14, 4), layout="constrained", sharey=True)
    window = max(1, result["steps"] // 30)
    dense, *adam = [entry for entry in result["entries"] if entry["optimizer"] == "Adam"]
    averaging = [entry for entry in adam if "--averaging" in entry["options"]]
    codecs = [entry for entry in adam if entry not in averaging]
    sgd = [entry for entry in result["entries"] if entry["optimizer"].startswith("SGD")]
    for axes, entries in zip(panels, ([dense, *codecs], [dense, *averaging], sgd)):
        for shade, entry in enumerate(entries):
            curve = entry["curve"]
            smooth = [sum(curve[i:i + window]) / window for i in range(len(curve) - window + 1)]
            axes.plot(range(window, len(curve) + 1), smooth, linewidth=2 if shade == 0 else 1.3,
                      linestyle="--" if "no feedback" in entry["name"] else "-",
                      color="#222222" if shade == 0 else plt.cm.viridis(shade / len(entries)),
                      label=f"{entry['name']} ({number(entry['to_dense'], 4)} × dense)")
        axes.set_xlabel(f"step (mean of {window} steps and {len(result['seeds'])} seeds)", fontsize=9)
        axes.legend(fontsize=7, frameon=False)
        bare(axes)
    panels[0].set_ylabel("loss of the character model", fontsize=9)
    finish(figure, result, picture)


def main(source, picture):
    content = Record.read(source)
    if content is None:
        sys.exit(f"{source} is not what this bench/run.py writes")
    result = view(content, QUESTIONS[content["benchmark"]])
    if not (result.get("entries") or result.get("groups") or result.get("columns")):
        print(f"no picture: nothing was measured for {source}")
        return
    {"all_reduce": draw_all_reduce, "step": draw_step, "memory": draw_memory,
     "update": draw_update, "selection": draw_selection, "codec": draw_codec,
     "convergence": draw_convergence, "embedding": draw_embedding, "fusion": draw_fusion,
     "merge": draw_merge, "level": draw_level, "lanes": draw_lanes, "recompute": draw_recompute,
     "pipeline": draw_pipeline, "classifier": draw_classifier,
     "speeds": draw_speeds, "hosts": draw_hosts}[result["benchmark"]](result, picture)
    print(f"picture: {picture}")


if __name__ == "__main__":
    main(*sys.argv[1:])
