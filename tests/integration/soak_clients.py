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
import json
import random
import select
import signal
import sys
import time

from soak_support import Failure, Node, Program, run_soak, soak_options, wait_until

PARALLEL_VICTIMS = 3
SETTLE_SECONDS = 15
RSS_SLACK_BYTES = 48 << 20


class Soak:
    def __init__(self, arguments, folder):
        self.random = random.Random(arguments.seed)
        self.kills = 60 if arguments.short else 3000
        self.bin, self.log = arguments.bin, folder / "node.log"
        self.node = None
        self.result = {"seed": arguments.seed, "kills": 0}

    def status(self):
        status = self.node.ask("status")
        return {name: int(status.get(name, 0))
                for name in ("sessions", "connections", "leases", "reservations")}

    def puts_aborted(self):
        return sum(int(tier.get("puts_aborted", 0)) for tier in self.node.ask("tiers")["tiers"])

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
            return self.status() == baseline["status"] and \
                self.node.descriptors() <= baseline["descriptors"]
        wait_until(same, SETTLE_SECONDS,
                   f"{self.status()}, {self.node.descriptors()} descriptors, where "
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
        self.node.send(signal.SIGSTOP)
        select.poll().poll(4000)
        self.node.send(signal.SIGCONT)
        report = json.loads(probe.line("{", 30))
        probe.end()
        self.result["frozen_node_probe"] = report
        if report["worst_overrun_ms"] > 500:
            raise Failure(f"a call ended {report['worst_overrun_ms']} ms after its deadline")
        if report["wrong_bytes"] or report["ok_after_pause"] == 0:
            raise Failure(f"after the node froze: {report}")

    def run(self):
        self.node = Node(self.bin, self.log, "--host-bytes", "256MiB")
        # One round first, so that lazily made things are part of the baseline.
        self.kill_clients(2 * PARALLEL_VICTIMS)
        wait_until(lambda: self.status()["sessions"] == 0, SETTLE_SECONDS, "idle node")
        self.result["kills"] = 0
        idle = {"status": self.status(), "descriptors": self.node.descriptors()}
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
        self.result["puts_aborted"] = self.puts_aborted()
        if self.result["puts_aborted"] == 0:
            raise Failure("no kill struck a put: the soak tested nothing")
        self.result["rss_growth_bytes"] = self.node.resident_bytes() - rss_before
        if self.result["rss_growth_bytes"] > RSS_SLACK_BYTES:
            raise Failure(f"memory grew by {self.result['rss_growth_bytes']} bytes")
        self.freeze_client(idle)
        self.freeze_node()
        self.settled(idle)
        self.result["exit_code"] = self.node.stop(20)
        if self.result["exit_code"] != 0:
            raise Failure(f"the node ended with {self.result['exit_code']}")

    def end(self):
        if self.node is not None:
            self.node.end()


def main():
    return run_soak("clients", Soak, soak_options(__doc__, "60 kills"))


if __name__ == "__main__":
    sys.exit(main())
