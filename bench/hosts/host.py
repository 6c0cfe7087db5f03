"""What script/hosts runs on each host for the driver: it holds the host's namespaces, for the driver and enter.sh
to run programs in, until the driver hangs up.

    host.py SOCKET PROBE

"probe SECONDS PORT [HOST]" is answered with the bytes/s that the probe received, "sent" with the bytes that
have left by eth0, headers included, "wait" with null.
"""

import os
import subprocess
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from common.control import Control


def sent():
    with open("/proc/self/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, fields = line.partition(":")
            if name.strip() == "eth0":
                return int(fields.split()[8])
    raise SystemExit("no eth0 in /proc/self/net/dev")


def main(path, probe):
    rank = int(os.environ["HOST_RANK"])
    control = Control(path, rank)
    for what, *words in control.commands():
        if what == "probe" and rank < 2:  # the first two hosts: links are alike
            seconds, port, server = words
            command = [probe, seconds, port, *([server] if rank == 1 else [])]
            control.send(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        else:
            control.send(sent() if what == "sent" else None)


main(*sys.argv[1:])
