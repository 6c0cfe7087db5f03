"""Programs that measure by themselves and print what they found."""

import os
import subprocess

from common import interrupt

LOOK_EVERY = 1.0  # seconds


def output_of(command, watch=None, environment=None):
    """What the program prints; CalledProcessError, with what it complained of, where it fails."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace", preexec_fn=os.setpgrp,
                          env={**os.environ, **(environment or {})}) as process:
        try:
            while True:
                interrupt.check()
                if watch:
                    watch.begin()
                try:
                    output, complaint = process.communicate(timeout=LOOK_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    continue
                finally:
                    if watch:
                        watch.end()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command, output, complaint)
    return output
