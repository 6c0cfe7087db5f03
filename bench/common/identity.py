"""What a run's figures belong to: a run is resumed only where all of it is the same."""

import hashlib
import os
import platform
import re
import subprocess

from common.report import machine

# What decides figures. Pages and pictures do not, and a run itself writes pictures.
SOURCES = ("CMakeLists.txt", "CMakePresets.json", "apps", "bench", "cmake", "examples", "include", "src")
BUILD = ("CMAKE_BUILD_TYPE", "CMAKE_CXX_COMPILER", "CMAKE_CXX_FLAGS", "CMAKE_HOME_DIRECTORY")


def commit(folder):
    """None where there is no git, or no repository."""
    try:
        done = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True,
                              check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def sources_digest(folder):
    """A digest of names and contents: changes that are not committed decide figures too."""
    digest = hashlib.sha256()
    for name in SOURCES:
        for path in sorted(files_below(os.path.join(folder, name))):
            with open(path, "rb") as file:
                content = file.read()
            digest.update(f"{os.path.relpath(path, folder)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def files_below(path):
    if os.path.isfile(path):
        yield path
    for parent, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (os.path.join(parent, name) for name in names)


def cached(build, name):
    """What CMake remembers for the build; None where it knows nothing."""
    try:
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            found = re.search(rf"^{name}:[A-Z]+=(.*)", file.read(), re.M)
    except OSError:
        return None
    return found and found.group(1)


def libtorch_version(build):
    """The version that the build is linked with; None where it has no libtorch."""
    try:
        with open(os.path.join(cached(build, "Torch_DIR") or "", "TorchConfigVersion.cmake"),
                  encoding="utf-8") as file:
            return re.search(r'PACKAGE_VERSION "(.*?)"', file.read()).group(1)
    except (OSError, AttributeError):
        return None


def identity(folder, build, torch_python, options):
    """{what: value}, all of it JSON."""
    return {"commit": commit(folder), "sources": sources_digest(folder), "machine": platform.node(),
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), **machine(),
            "build": build, **{name: cached(build, name) for name in BUILD},
            "libtorch": libtorch_version(build), "torch_python": torch_python, **options}


def differences(before, now):
    """A line for each part in which the two are not the same."""
    return [f"{name}: was {before.get(name)}, is {now.get(name)}" for name in {**before, **now}
            if before.get(name) != now.get(name)]
