#!/usr/bin/env python3
"""Clients that die and peers that freeze, against one node that must not care.

1. A witness works through the whole run and judges every byte.
2. Clients are killed in mid-transfer, several at a time (3,000; --short: 60).
3. A client is frozen: the node ends its session, nobody else notices.
4. The node is frozen: each call of the witness ends by its deadline; then it goes on.

In the end the node's sessions, connections, leases, reservations and descriptors are what they
were, and its memory has not grown. Exit 0 when all of that holds. The seed reproduces the moments
of the kills.
"""
import argparse
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time

from soak_support import Failure, Program, ROOT, finish, wait_until

PARALLEL_VICTIMS = 3
SETTLE_SECONDS = 15
RSS_SLACK_BYTES = 48 << 20


class Node:
    """terraced, and what can be seen of it from outside."""

    def __init__(self, bin_folder, host_bytes):
        self.bin = bin_folder
        self.program = Program([bin_folder / "terraced", "--transport", "tcp",
                                "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
                                "--host-bytes", host_bytes])
        ready = self.program.line("terraced ready", 120)
        self.address = dict(p.split("=", 1) for p in ready.split() if "=" in p)["control"]

    def ask(self, what):
        command = [self.bin / "terracectl", "--address", self.address, "--json", what]
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if out.returncode != 0:
            raise Failure(f"the node does not answer: {out.stderr.strip()}")
        return json.loads(out.stdout)

    def puts_aborted(self):
        return sum(int(tier.get("puts_aborted", 0)) for tier in self.ask("tiers")["tiers"])

    def status(self):
        status = self.ask("status")
        return {name: int(status.get(name, 0))
                for name in ("sessions", "connections", "leases", "reservations")}

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.program.process.pid}/fd"))

    def resident_bytes(self):
        text = pathlib.Path(f"/proc/{self.program.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def alive(self):
        return self.program.process.poll() is None


class Soak:
    def __init__(self, arguments):
        self.random = random.Random(arguments.seed)
        self.kills = 60 if arguments.short else 3000
        self.bin = pathlib.Path(arguments.bin)
        self.node = Node(self.bin, "256MiB")
        self.result = {"seed": arguments.seed, "kills": 0}

    def client(self, *options):
        return Program([self.bin / "soak_client", "--address", self.node.address, *options])

    def kill_clients(self, count):
        """Each victim is killed at a random moment after its first transfer began."""
        done = 0
        while done < count:
            victims = [self.client("--seed", str(self.random.randrange(1 << 30)), "--block-bytes",
                                   self.random.choice(["64KiB", "256KiB", "1MiB", "4MiB"]))
                       for _ in range(min(PARALLEL_VICTIMS, count - done))]
            for victim in victims:
                victim.line("running", 20)
            pause = select.poll()
            for victim in victims:
                pause.poll(self.random.uniform(0, 15))
                victim.end()
            done += len(victims)
            self.result["kills"] += len(victims)
            if not self.node.alive():
                raise Failure(f"the node died after {self.result['kills']} kills")
            if self.result["kills"] % 60 < PARALLEL_VICTIMS:
                print(f"soak clients: {self.result['kills']} of {self.kills} killed, "
                      f"{self.node.resident_bytes() >> 20} MiB resident, "
                      f"{self.node.descriptors()} descriptors", flush=True)

    def settled(self, baseline):
        """Everything that belongs to dead clients is given back."""
        def same():
            return self.node.status() == baseline["status"] and \
                self.node.descriptors() <= baseline["descriptors"]
        wait_until(same, SETTLE_SECONDS,
                   f"{self.node.status()}, {self.node.descriptors()} descriptors, where "
                   f"{baseline['status']}, {baseline['descriptors']} were")

    def freeze_client(self, baseline):
        frozen = self.client("--seed", "7", "--block-bytes", "1MiB")
        frozen.line("running", 20)
        frozen.send(signal.SIGSTOP)
        start = time.monotonic()
        self.settled(baseline)
        self.result["frozen_client_gone_s"] = round(time.monotonic() - start, 2)
        frozen.end()

    def freeze_node(self):
        probe = self.client("--seed", "8", "--block-bytes", "256KiB", "--seconds", "8")
        probe.line("running", 20)
        self.node.program.send(signal.SIGSTOP)
        select.poll().poll(4000)
        self.node.program.send(signal.SIGCONT)
        report = json.loads(probe.line("{", 30))
        probe.end()
        self.result["frozen_node_probe"] = report
        if report["worst_overrun_ms"] > 500:
            raise Failure(f"a call ended {report['worst_overrun_ms']} ms after its deadline")
        if report["wrong_bytes"] or report["ok_after_pause"] == 0:
            raise Failure(f"after the node froze: {report}")

    def run(self):
        # One round first, so that lazily made things are part of the baseline.
        self.kill_clients(2 * PARALLEL_VICTIMS)
        wait_until(lambda: self.node.status()["sessions"] == 0, SETTLE_SECONDS, "idle node")
        self.result["kills"] = 0
        idle = {"status": self.node.status(), "descriptors": self.node.descriptors()}
        rss_before = self.node.resident_bytes()
        witness = self.client("--seed", "1", "--block-bytes", "256KiB", "--witness")
        witness.line("running", 20)
        self.kill_clients(self.kills)
        witness.send(signal.SIGTERM)
        report = json.loads(witness.line("{", 20))
        witness.end()
        self.result["witness"] = report
        if report["wrong_bytes"] or report["timeouts"] or report["other"]:
            raise Failure(f"the witness noticed: {report}")
        self.settled(idle)
        # Proof that the kills struck while blocks were being written.
        self.result["puts_aborted"] = self.node.puts_aborted()
        if self.result["puts_aborted"] == 0:
            raise Failure("no kill struck a put: the soak tested nothing")
        self.result["rss_growth_bytes"] = self.node.resident_bytes() - rss_before
        if self.result["rss_growth_bytes"] > RSS_SLACK_BYTES:
            raise Failure(f"memory grew by {self.result['rss_growth_bytes']} bytes")
        self.freeze_client(idle)
        self.freeze_node()
        self.settled(idle)
        self.node.program.end(signal.SIGTERM)
        self.result["exit_code"] = self.node.program.process.returncode
        if self.result["exit_code"] != 0:
            raise Failure(f"the node ended with {self.result['exit_code']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="60 kills")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--bin", default=ROOT / "build/release/bin", help="folder of the programs")
    arguments = parser.parse_args()
    print(f"soak clients: seed {arguments.seed}", flush=True)
    soak = Soak(arguments)
    try:
        soak.run()
        soak.result["failed"] = ""
    except (Failure, subprocess.TimeoutExpired) as failure:
        soak.result["failed"] = str(failure)
    finally:
        soak.node.program.end()
    return finish(soak.result, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
