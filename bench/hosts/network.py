"""Hosts of script/hosts, for contestants to run on."""

import os

from common.contestants import Contestant, Failed

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, os.pardir, os.pardir, "script", "hosts")
PORT = 5078
SKIPPED = "hosts: skipped: "


class NoHosts(Exception):
    """Hosts cannot be made here; the text is the reason."""


def address(host):
    return f"10.77.0.{host + 1}"


class Network(Contestant):
    """`hosts` of them behind links of `rate` ("1gbit", "10gbit"), until it is closed. The driver stays outside."""

    def __init__(self, hosts, rate, probe, script=SCRIPT):
        try:
            super().__init__("script/hosts", [[script, "--hosts", str(hosts), "--rate", rate, "python3",
                                               os.path.join(HERE, "host.py"), "{socket}", probe]], hosts, pinned=False)
        except Failed as failed:
            _, skipped, reason = str(failed).partition(SKIPPED)
            if skipped:
                raise NoHosts(reason.splitlines()[0]) from None
            raise
        self.hosts = hosts

    def on(self, host, command):
        """The command that runs `command` there."""
        return ["nsenter", "--target", str(self.process(host)), "--net", "--uts", "--", *command]

    def environment(self):
        """What enter.sh, Gloo and MPI are told of it."""
        pairs = " ".join(f"{address(host)}={self.process(host)}" for host in range(self.hosts))
        return {"TUTTI_BENCH_HOSTS": pairs, "GLOO_SOCKET_IFNAME": "eth0"}

    def probe(self, seconds):
        """Bytes/s of one connection that both ends fill: of the slower direction."""
        return min(self.ask(f"probe {seconds} {PORT} {address(0)}")[:2])

    def sent(self):
        """Bytes that have left each host so far."""
        return self.ask("sent")
