"""Packages of Python's in a folder of the checkout, for tests that read what Tutti has written with the programs that
others read it with."""
import pathlib
import re
import subprocess
import sys

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]


def python_with(*requirements, alone=()):
    """A Python that has them, and what they need, and `alone` without what those need; ends the test as skipped where
    they are not to be had."""
    folder = ROOT / ".tutti" / "readers" / requirements[0].split("=")[0]
    python = folder / "bin" / "python"
    mark = folder / "installed"
    if mark.exists() and mark.read_text() == " ".join([*requirements, *alone]):
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [[sys.executable, "-m", "venv", folder], [*install, *requirements]]
    if alone:
        commands.append([*install, "--no-deps", *alone])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"skipped: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
            sys.exit(SKIPPED)
    mark.write_text(" ".join([*requirements, *alone]))
    return python


def python_with_torch(torch, alone=()):
    """A Python whose torch is the libtorch in that folder, with safetensors and `alone`, and the environment to run it
    in; ends the test as skipped where the libtorch is none of this Python's."""
    site = pathlib.Path(torch).parent
    if not any(site.glob(f"torch/_C.cpython-3{sys.version_info[1]}-*")):
        print(f"skipped: {torch} is not a torch of Python 3.{sys.version_info[1]}")
        sys.exit(SKIPPED)
    needed = ["numpy", "pillow", "sympy", "filelock", "jinja2", "networkx", "fsspec", "typing_extensions"]
    return python_with("safetensors", *needed, alone=alone), {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}


def vision_of(torch):
    """The torchvision that goes with that torch."""
    version = re.search(r"__version__ = '2\.(\d+)", (pathlib.Path(torch) / "version.py").read_text())
    return f"torchvision==0.{int(version.group(1)) + 15}.0"


def run(command, **options):
    """Its output; ends the test where it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout
