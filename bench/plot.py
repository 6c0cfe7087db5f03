"""Draws a benchmark's JSON file: plot.py RESULT.json PICTURE.png (needs matplotlib)."""

import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

sys.path[0] = os.path.dirname(os.path.abspath(__file__))

from common.report import number, size_name
from step.rivals import BASELINE
from step.step import MODELS, OPTIMIZERS

COLOURS = {
    "Tutti arena": "#0b6e4f", "Tutti staged": "#53a548", "Tutti tensor": "#9bc53d",
    "Tutti DataParallel": "#0b6e4f", "probe": "#222222", "Open MPI": "#d1495b", "Gloo": "#edae49",
    "Gloo by hand": "#edae49", "PyTorch DDP": "#d1495b", "no sync, C++": "#a9b4c2",
    "no sync, Python": "#cbd2da",
}


def finish(figure, result, picture):
    machine = result["machine"]
    figure.get_layout_engine().set(rect=(0, 0.03, 1, 0.97))
    figure.text(0.995, 0.005, f"{machine['cpu']}, {machine['cores']} cores", ha="right", va="bottom",
                fontsize=7, color="#666666")
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
        for name in group["sizes"][0]["columns"]:
            if name == "copy":
                continue
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
    models = list(dict.fromkeys(entry["model"] for entry in entries))
    figure, panels = plt.subplots(len(models), len(OPTIMIZERS), figsize=(10, 1.75 * len(models) + 0.4),
                                  squeeze=False, layout="constrained")
    for entry in entries:
        axes = panels[models.index(entry["model"])][list(OPTIMIZERS).index(entry["optimizer"])]
        cells = entry["columns"]
        names = [n for n in COLOURS if n in cells]
        values = [cells[n]["median_us"] / 1e3 for n in names]
        texts = [number(v) + (f" (+{number(max(0.0, cells[n]['added_us'] / 1e3))})"
                              if cells[n]["added_us"] is not None else "")
                 for n, v in zip(names, values)]
        if names:
            bars(axes, names, values, texts)
        axes.set_title(f"{MODELS[entry['model']]}, {OPTIMIZERS[entry['optimizer']]}", fontsize=9, loc="left")
    figure.supxlabel(f"ms per step, {result['workers']} workers (+ what synchronising adds)", fontsize=9)
    finish(figure, result, picture)


def draw_memory(result, picture):
    entries = result["entries"]
    figure, panels = plt.subplots(len(entries), 1, figsize=(7, 1.75 * len(entries) + 0.4), squeeze=False,
                                  layout="constrained")
    for axes, entry in zip(panels[:, 0], entries):
        cells = entry["columns"]
        names = [n for n in COLOURS if n in cells and (n in BASELINE or n.startswith("no sync"))]
        values = [max(0.0, cells[n]["gradient_copies"]) for n in names]
        if names:
            bars(axes, names, values, [number(v) for v in values])
        axes.set_title(MODELS[entry["model"]], fontsize=9, loc="left")
    figure.supxlabel("bytes held per worker after backward, in copies of the gradients", fontsize=9)
    finish(figure, result, picture)


def main(source, picture):
    with open(source, encoding="utf-8") as file:
        result = json.load(file)
    {"all_reduce": draw_all_reduce, "step": draw_step, "memory": draw_memory}[result["benchmark"]](
        result, picture)


main(*sys.argv[1:])
