"""Packages of Python's in a folder of the checkout, for tests that read what Tutti has written with the programs that
others read it with."""
import pathlib
import subprocess
import sys

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]


def python_with(*requirements):
    """A Python that has them; ends the test as skipped where they are not to be had."""
    name = "-".join(requirement.split("=")[0] for requirement in requirements)
    folder = ROOT / ".tutti" / "readers" / name
    python = folder / "bin" / "python"
    mark = folder / "installed"
    if mark.exists() and mark.read_text() == " ".join(requirements):
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    for command in ([sys.executable, "-m", "venv", folder],
                    [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"skipped: {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
            sys.exit(SKIPPED)
    mark.write_text(" ".join(requirements))
    return python


def run(command, **options):
    """Its output; ends the test where it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout
