"""tensorboard_test.py TUTTI CHAR_LM: TensorBoard itself reads the curves of a run that went on, on another number of
workers, from a checkpoint before its end: every step once, with the numbers of the step log. Then a server shows them."""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import urllib.request

import packages

READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
print(json.dumps({tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def trained(tutti, char_lm, folder):
    text = packages.ROOT / "docs" / "trainer.md"
    program = [char_lm, "--text", text, "--shards", "6", "--save", folder / "saved", "--log", folder / "log.jsonl",
               "--tensorboard", folder / "runs" / "one", "--quiet"]
    packages.run([tutti, "run", "-n", "2", *program, "--steps", "9", "--save-every", "5"])
    for later in (folder / "saved").glob("step-00000009"):
        for file in later.iterdir():
            file.unlink()
        later.rmdir()
    packages.run([tutti, "run", "-n", "3", *program, "--steps", "12", "--load", folder / "saved"])


def logged_losses(folder):
    losses = {}
    for line in (folder / "log.jsonl").read_text().splitlines():
        line = json.loads(line)
        if line.get("kind") == "metrics":
            losses[line["step"]] = as_float32(line["loss"])
    return sorted(losses.items())


def served(python, folder):
    """The loss, from a server as a browser gets it."""
    server = subprocess.Popen([python, "-m", "tensorboard.main", "--logdir", folder / "runs", "--port", "0"],
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        for line in server.stderr:
            found = re.search(r"(http://\S+:\d+)/", line)
            if found:
                break
        else:
            sys.exit("tensorboard ended and said no address")
        address = found.group(1)
        for _ in range(100):
            with urllib.request.urlopen(f"{address}/data/plugin/scalars/tags", timeout=60) as answer:
                if "one" in json.load(answer):
                    break
        with urllib.request.urlopen(f"{address}/data/plugin/scalars/scalars?run=one&tag=step/loss",
                                    timeout=60) as answer:
            return [(step, value) for _, step, value in json.load(answer)]
    finally:
        server.kill()
        server.wait()


def main():
    tutti, char_lm = sys.argv[1:]
    python = packages.python_with("tensorboard==2.21.0")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        trained(tutti, char_lm, folder)
        curves = json.loads(packages.run([python, "-c", READER, folder / "runs" / "one"]).splitlines()[-1])
        losses = logged_losses(folder)
        assert [step for step, _ in losses] == list(range(1, 13)), losses
        assert [tuple(one) for one in curves["step/loss"]] == losses, (curves["step/loss"], losses)
        for tag in ("step/learning_rate", "step/weight"):
            assert [step for step, _ in curves[tag]] == list(range(1, 13)), (tag, curves.get(tag))
        assert all(value > 0 for _, value in curves["speed/steps_per_second"]), curves
        shown = served(python, folder)
        assert shown == losses, (shown, losses)
    print(f"TensorBoard read {sum(map(len, curves.values()))} values of {len(curves)} curves")


main()
