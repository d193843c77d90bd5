#!/usr/bin/env python3
"""A node among enemies, whose serving process dies again and again.

Two witnesses work through the whole run, one that reads the node's memory and one whose bytes
travel, and judge every byte. Meanwhile each port gets garbage, half of a message, connections that
say nothing, more connections than there are descriptors for; clients take leases and vanish; one
writes over its landing memory while the node reads it; one sends frames that are in order and make
no sense, and takes leases until it gets no more. And the serving process is killed and
aborted (200 times; --short: 8).

After each death the node must serve within a second, with at least 99 % of the blocks that were in
host memory. In the end no lease is left. Then a node that carries UCX's protocol gets the packet
that aborts UCX 1.13, as often as clients can come back in between (20; --short: 2).
"""
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time

from soak_support import Failure, Node, Program, pause_ms, run_soak, soak_options, wait_until

LONGEST_GAP_SECONDS = 1
LEAST_KEPT = 0.99
SETTLE_SECONDS = 20
HELD_CONNECTIONS = 200
LISTENING = "0A"  # in /proc/net/tcp
# To a port that UCX's tcp transport listens at: its magic number, then a message of no known kind
# and no length.
UCX_KILLER = struct.pack("<QBI", 0xCAFEBABE12345678, 0xFF, 0)


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        children = file.read().split()
    return int(children[0]) if children else 0


def listened_at(pid):
    """Where a process listens over IPv4."""
    inodes = set()
    for fd in os.scandir(f"/proc/{pid}/fd"):
        target = os.readlink(fd.path)
        if target.startswith("socket:["):
            inodes.add(target[len("socket:["):-1])
    found = set()
    with open("/proc/net/tcp", encoding="ascii") as table:
        for columns in (line.split() for line in list(table)[1:]):
            if columns[3] == LISTENING and columns[9] in inodes:
                ip, port = columns[1].split(":")
                found.add((socket.inet_ntoa(struct.pack("<I", int(ip, 16))), int(port, 16)))
    return found


def endpoint(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


class Enemy(threading.Thread):
    """Knocks at every port, with what nobody expects there."""

    def __init__(self, seed, endpoints):
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.endpoints = endpoints
        self.held = []
        self.knocks = 0
        self.over = threading.Event()

    def greeting(self):
        """The beginning of something real, cut or spoilt."""
        real = self.random.choice([
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
            b"TRMS\x01\x00\x01\x00" + bytes(16),
            b"TLM1" + self.random.randbytes(32)])
        cut = bytearray(real[:self.random.randrange(1, len(real) + 1)])
        if self.random.random() < 0.5:
            cut[self.random.randrange(len(cut))] ^= 1 << self.random.randrange(8)
        return bytes(cut)

    def knock(self):
        peer = socket.create_connection(self.random.choice(self.endpoints), timeout=1)
        self.knocks += 1
        kind = self.random.randrange(4)
        if kind == 0:
            peer.sendall(self.random.randbytes(self.random.randrange(1, 4096)))
        elif kind == 1:
            peer.sendall(self.greeting())
        elif kind == 2:
            peer.sendall(self.greeting() + self.random.randbytes(1 << 16))
        # Some stay, half open; the oldest makes room.
        if kind == 3 or self.random.random() < 0.3:
            self.held.append(peer)
            if len(self.held) > HELD_CONNECTIONS:
                self.held.pop(0).close()
        else:
            peer.close()

    def run(self):
        while not self.over.is_set():
            try:
                self.knock()
            except OSError:
                pass  # refused, reset: the node is away, or has had enough
            self.over.wait(0.005)

    def end(self):
        self.over.set()
        self.join(10)
        for peer in self.held:
            peer.close()


class Soak:
    def __init__(self, arguments, folder):
        self.random = random.Random(arguments.seed)
        self.seed = arguments.seed
        self.kills = 8 if arguments.short else 200
        self.packets = 2 if arguments.short else 20
        self.bin, self.log = arguments.bin, folder / "node.log"
        self.node, self.enemy, self.clients = None, None, []
        self.result = {"seed": arguments.seed, "restarts": 0, "wrong_bytes": 0, "errors": 0,
                       "leaked_leases": 0, "kept_share": 1.0, "longest_gap_s": 0.0}
        self.before = self.kept = 0

    def client(self, *options):
        client = Program([self.bin / "soak_client", "--address", self.node.address, *options])
        self.clients.append(client)
        client.line("running", 30)
        return client

    def host_tier(self, what):
        return sum(int(tier.get(what, 0)) for tier in self.node.ask("tiers")["tiers"])

    def restarts(self):
        try:
            return int(self.node.ask("status").get("restarts", 0))
        except Failure:
            return -1

    def serving(self):
        """Whether the node's control port is listened at."""
        try:
            socket.create_connection(endpoint(self.node.address), timeout=1).close()
            return True
        except OSError:
            return False

    def wait_for_child(self, old, began):
        def there():
            child = child_of(self.node.program.process.pid)
            return child not in (0, old) and self.serving()
        wait_until(there, 30, "the node is back")
        return time.monotonic() - began

    def kill(self, number):
        """The serving process dies; how much of its memory is there afterwards."""
        blocks = self.host_tier("blocks")
        child = child_of(self.node.program.process.pid)
        began = time.monotonic()
        os.kill(child, number)
        gap = self.wait_for_child(child, began)
        self.result["restarts"] += 1
        self.result["longest_gap_s"] = round(max(self.result["longest_gap_s"], gap), 3)
        kept = self.host_tier("kept")
        self.before += blocks
        self.kept += min(kept, blocks)
        self.result["kept_share"] = round(self.kept / max(self.before, 1), 5)
        if self.restarts() != self.result["restarts"]:
            raise Failure(f"{self.restarts()} restarts where {self.result['restarts']} were made")
        if gap > LONGEST_GAP_SECONDS:
            raise Failure(f"the node was away for {gap:.2f} s")

    def kill_it_often(self):
        for i in range(self.kills):
            victim = None
            if i % 4 == 0:  # takes leases, and vanishes with the node or before it
                victim = self.client("--seed", str(self.random.randrange(1 << 30)),
                                     "--block-bytes", "256KiB")
            pause_ms(self.random.uniform(1000, 1500))
            if victim is not None:
                victim.end()
            self.kill(self.random.choice([signal.SIGKILL, signal.SIGABRT]))
            if i % 20 == 19:
                print(f"soak hostile: {i + 1} of {self.kills}, kept {self.result['kept_share']}, "
                      f"longest gap {self.result['longest_gap_s']} s, {self.enemy.knocks} knocks",
                      flush=True)

    def judge(self, name, witness):
        witness.send(signal.SIGTERM)
        report = json.loads(witness.line("{", 30))
        witness.end()
        self.result[name] = report
        self.result["wrong_bytes"] += report["wrong_bytes"]
        self.result["errors"] += report["other"] + report["timeouts"]
        if report["ok"] == 0:
            raise Failure(f"{name} got nothing done")

    def under_fire(self):
        self.node = Node(self.bin, self.log, "--host-bytes", "256MiB", supervisor="on")
        endpoints = [endpoint(a) for a in (self.node.address, self.node.http, *self.node.data)]
        self.enemy = Enemy(self.seed, endpoints)
        witnesses = {
            "local": self.client("--seed", "1", "--block-bytes", "256KiB", "--witness"),
            "remote": self.client("--seed", "2", "--block-bytes", "128KiB", "--witness",
                                  "--remote"),
            "scribbler": self.client("--seed", "3", "--block-bytes", "64KiB", "--scribble")}
        stranger = Program([self.bin / "soak_enemy", "--address", self.node.address, "--seed",
                            str(self.seed)])
        self.clients.append(stranger)
        self.enemy.start()
        self.kill_it_often()
        stranger.send(signal.SIGTERM)
        self.result["enemy"] = json.loads(stranger.line("{", 60))
        stranger.end()
        if 0 in self.result["enemy"].values():
            raise Failure(f"the enemy did not do all that it is for: {self.result['enemy']}")
        scribbled = witnesses.pop("scribbler")
        scribbled.send(signal.SIGTERM)
        report = json.loads(scribbled.line("{", 30))
        scribbled.end()
        # What it spoils are its own puts; what it reads is right or nothing.
        self.result["scribbler"] = report
        self.result["wrong_bytes"] += report["wrong_bytes"]
        for name, witness in witnesses.items():
            self.judge(name, witness)
        self.enemy.end()
        self.result["knocks"] = self.enemy.knocks
        try:
            wait_until(lambda: self.node.metric("terrace_leases") == 0, SETTLE_SECONDS, "leases")
        except Failure:
            self.result["leaked_leases"] = int(self.node.metric("terrace_leases"))
        code = self.node.stop(20)
        if code != 0:
            raise Failure(f"the node ended with {code}")

    def packets_that_abort_ucx(self):
        os.environ["UCX_TLS"] = "tcp"
        self.node = Node(self.bin, self.log, "--host-bytes", "64MiB", transport="rdma",
                         supervisor="on")
        witness = self.client("--seed", "4", "--block-bytes", "64KiB", "--witness", "--rdma")
        for _ in range(self.packets):
            self.abort_by_packet()
            pause_ms(1500)  # back-off is for those who die sooner
        self.judge("ucx", witness)
        self.result["aborts_by_packet"] = self.packets
        code = self.node.stop(20)
        if code != 0:
            raise Failure(f"the node ended with {code}")

    def abort_by_packet(self):
        child = child_of(self.node.program.process.pid)
        own = {endpoint(a) for a in (self.node.address, self.node.http)}
        for where in listened_at(child) - own:
            began = time.monotonic()
            with socket.create_connection(where, timeout=5) as peer:
                peer.sendall(UCX_KILLER)
                select.select([peer], [], [], 0.5)
            # A connection that ends is the process's end, or only that port's way with strangers.
            while child_of(self.node.program.process.pid) == child:
                if time.monotonic() - began > 0.5:
                    break
                pause_ms(1)
            else:
                gap = self.wait_for_child(child, began)
                self.result["longest_gap_s"] = round(max(self.result["longest_gap_s"], gap), 3)
                return
        raise Failure("no port of UCX's is where the packet aborts it")

    def run(self):
        self.under_fire()
        self.packets_that_abort_ucx()
        for name in ("wrong_bytes", "errors", "leaked_leases"):
            if self.result[name]:
                raise Failure(f"{name}: {self.result[name]}")
        if self.result["kept_share"] < LEAST_KEPT:
            raise Failure(f"only {self.result['kept_share']} of the blocks were kept")

    def end(self):
        for client in self.clients:
            client.end()
        if self.node is not None:
            self.node.end()


def main():
    return run_soak("hostile", Soak, soak_options(__doc__, "8 kills"))


if __name__ == "__main__":
    sys.exit(main())
