#!/usr/bin/env python3
"""What the device writes for each byte of blocks that the ssd tier takes.

A node whose ssd tier lies on an ext4 of its own (a loop device) is churned until blocks of three
times the folder's budget have been written (of 4 GiB; --short: 300 MiB), with blocks of 1 MiB
and, on another file system, of 64 KiB. Then the blocks are deleted, so that the node has nothing
left to write when it stops. The device's bytes are all that it was told to write until the file
system was unmounted: extents, the catalogue with its log and compactions, ext4's journal. They
are held to a bound per byte of blocks, and what the folder takes of the disk, looked at all the
time, to its budget. Needs root and loop devices; exit 77 without.
"""
import os
import signal
import sys
import time

from loop_disk import LoopDisk, call, why_not
from soak_support import Failure, Load, Node, run_soak, soak_options, wait_until

BUDGETS = 3
MOST_PER_BYTE = {1 << 20: 1.05, 64 << 10: 1.10}
CHURN_SECONDS = 1800  # at most


def bytes_on_disk(folder):
    total = 0
    for path, _, names in os.walk(folder):
        for name in [*names, "."]:
            try:
                total += os.stat(os.path.join(path, name)).st_blocks * 512
            except FileNotFoundError:
                pass  # the catalogue's files come and go
    return total


class Soak:
    def __init__(self, arguments, folder):
        self.bin, self.folder = arguments.bin, folder
        self.budget_mebibytes = 300 if arguments.short else 4096
        self.disk = self.node = self.load = None
        self.result = {"seed": arguments.seed, "budget_bytes": self.budget_mebibytes << 20,
                       "block_bytes": {}}

    def user_bytes(self):
        return int(self.node.metric("terrace_ssd_user_bytes_written_total"))

    def churn(self, block_bytes, store):
        """Returns the most that lay on the disk, and what the load found."""
        self.load = Load(self.node, self.folder / "report", "--seconds", str(CHURN_SECONDS),
                         "--block-bytes", str(block_bytes), "--seed", str(self.result["seed"]))
        most = 0

        def written():
            nonlocal most
            if not self.load.running():
                raise Failure(f"the load ended early: {self.load.program.rest()}")
            most = max(most, bytes_on_disk(store))
            return self.user_bytes() >= BUDGETS * self.result["budget_bytes"]
        wait_until(written, CHURN_SECONDS, f"{BUDGETS} budgets of blocks are written")
        self.load.program.send(signal.SIGTERM)
        return most, self.load.report()

    def empty(self):
        self.node.ask("namespace", "delete", "load")

        def nothing_left():
            tiers = self.node.ask("tiers")["tiers"]
            return not any(tier["blocks"] for tier in tiers) and \
                self.node.metric("terrace_ssd_requests_in_flight") == 0
        wait_until(nothing_left, 60, "all blocks are deleted")

    def measure(self, block_bytes):
        begin = time.monotonic()
        folder = self.folder / str(block_bytes)
        folder.mkdir()
        self.disk = LoopDisk(folder, self.budget_mebibytes * 3 // 2)
        store = self.disk.mount_point / "ssd"
        self.node = Node(self.bin, self.folder / "node.log", "--host-bytes", "64MiB",
                         "--ssd", f"{store}:{self.budget_mebibytes}MiB")
        call("sync", "--file-system", self.disk.mount_point)
        before = self.disk.bytes_written()
        on_disk, load = self.churn(block_bytes, store)
        self.empty()
        user = self.user_bytes()
        extents = int(self.node.metric("terrace_ssd_device_bytes_written_total"))
        dropped = int(self.node.metric("terrace_demotions_total", outcome="failed"))
        if self.node.stop(60) != 0:
            raise Failure("the node did not stop in order")
        on_disk = max(on_disk, bytes_on_disk(store))
        self.disk.unmount()
        device = self.disk.bytes_written() - before
        self.disk.close()
        self.result["block_bytes"][block_bytes] = {
            "user_bytes": user, "device_bytes": device, "extent_bytes": extents,
            "device_bytes_per_user_byte": round(device / user, 4),
            "at_most": MOST_PER_BYTE[block_bytes], "most_bytes_on_disk": on_disk,
            "blocks_dropped": dropped, "load": {name: load[name] for name in (
                "hit_rate", "wrong_bytes", "errors", "timeouts", "stuck", "no_space")},
            "seconds": round(time.monotonic() - begin, 1)}
        print(f"soak wear: {block_bytes >> 10} KiB blocks: {device / user:.4f} bytes written per "
              f"byte of blocks ({extents / user:.4f} to extents), {on_disk >> 20} of "
              f"{self.budget_mebibytes} MiB on disk", flush=True)

    def run(self):
        for block_bytes in MOST_PER_BYTE:
            self.measure(block_bytes)
        missed = []
        for block_bytes, found in self.result["block_bytes"].items():
            per_byte, most = found["device_bytes_per_user_byte"], found["at_most"]
            if per_byte > most:
                missed.append(f"{block_bytes} bytes: {per_byte} written per byte, more than {most}")
            if found["most_bytes_on_disk"] > self.result["budget_bytes"]:
                missed.append(f"{block_bytes} bytes: {found['most_bytes_on_disk']} on disk")
        if missed:
            raise Failure("; ".join(missed))

    def end(self):
        for program in (self.load, self.node):
            if program is not None:
                program.end()
        if self.disk is not None:
            self.disk.close()


def main():
    return run_soak("wear", Soak, soak_options(__doc__, "a budget of 300 MiB"), skip=why_not())


if __name__ == "__main__":
    sys.exit(main())
