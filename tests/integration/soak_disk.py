#!/usr/bin/env python3
"""One device of two falls sick, in each way a device can; the other must not notice.

On the twin of the disk: errors, short transfers, writes that lie, slow, hung, gone and back. On an
ext4 of its own: full (from outside, then free again), frozen, and dead until it is mounted anew.
While a fault lasts the healthy folder keeps its rate, every put is answered by the deadline, reads
of what is here go on where the device can, and no byte is wrong; afterwards everything that was
acknowledged as durable is there and writes go on without a restart (but for the dead file
system). Without root and loop devices the second half is skipped. --short: 1.3 s a fault.
"""
import json
import subprocess
import sys

from loop_disk import LoopDisk, why_not
from soak_support import Failure, Program, run_soak, soak_options, wait_until

DISK_MEBIBYTES = 160
LATEST_MS = 1500  # an answer, where the deadline is a second and looked at now and then
LEAST_RATE = 0.25  # of the healthy folder's own: the two share processors, and disks perhaps


class Pair:
    """soak_disk, and what is asked of it."""

    def __init__(self, bin_folder, sick, well, twin=False):
        command = [bin_folder / "soak_disk", "--sick", sick, "--well", well]
        self.errors = open(f"{well}.errors", "ab")
        self.program = Program(command + (["--twin"] if twin else []), stdin=subprocess.PIPE,
                               stderr=self.errors)
        self.opened = json.loads(self.program.line("opened ", 60)[len("opened "):])

    def ask(self, line, seconds=60):
        try:
            self.program.process.stdin.write(f"{line}\n".encode())
            self.program.process.stdin.flush()
            answer = json.loads(self.program.line("{", seconds))
        except (Failure, BrokenPipeError) as failure:
            raise Failure(f"'{line}': {failure}: {self.program.rest()}") from failure
        if "error" in answer:
            raise Failure(f"'{line}': {answer['error']}")
        return answer

    def close(self):
        self.program.process.stdin.write(b"end\n")
        self.program.process.stdin.flush()
        self.program.line("ended", 90)
        if self.program.process.wait(20) != 0:
            raise Failure(f"the store ended with {self.program.process.returncode}")
        self.end()

    def end(self):
        self.program.end()
        self.errors.close()


def ok(outcomes):
    return outcomes["by_code"].get("OK", 0)


class Soak:
    def __init__(self, arguments, folder):
        self.seconds = 1.3 if arguments.short else 10
        self.bin, self.folder = arguments.bin, folder
        self.pair = self.disk = None
        self.result = {"seed": arguments.seed, "phases": {}}

    def measure(self, name, seconds=None):
        measured = self.pair.ask(f"measure {seconds or self.seconds}")
        self.result["phases"][name] = measured
        for side, what in measured.items():
            if what["wrong_bytes"]:
                raise Failure(f"{name}: wrong bytes on the {side} device: {what}")
            if max(what["puts"]["slowest_ms"], what["reads"]["slowest_ms"]) > LATEST_MS:
                raise Failure(f"{name}: an answer came after its deadline: {side} {what}")
        print(f"soak disk: {name}: sick {measured['sick']['reads']['by_code']} reads, "
              f"{measured['sick']['puts']['by_code']} puts; well {ok(measured['well']['reads'])} "
              f"reads, {ok(measured['well']['puts'])} puts", flush=True)
        return measured

    def fault(self, name, begin, end, reads_go_on, baseline, puts_go_on=False):
        begin()
        measured = self.measure(name)
        end()
        usual, now = (ok(m["well"]["reads"]) + ok(m["well"]["puts"]) for m in (baseline, measured))
        if now < usual * LEAST_RATE:
            raise Failure(f"{name}: the healthy folder did {now}, not about {usual} requests")
        reads = measured["sick"]["reads"]
        if reads_go_on and ok(reads) < sum(reads["by_code"].values()) / 3:
            raise Failure(f"{name}: reads did not go on: {measured['sick']}")
        if puts_go_on and ok(measured["sick"]["puts"]) == 0:
            raise Failure(f"{name}: no put went on: {measured['sick']}")
        if name in ("hang", "frozen") and \
                not measured["sick"]["puts"]["by_code"].get("DEADLINE_EXCEEDED"):
            raise Failure(f"{name}: no put was told of it: {measured['sick']}")
        self.healthy_again(name)

    def healthy_again(self, name):
        def puts_go():
            measured = self.pair.ask("measure 0.5")["sick"]
            return ok(measured["puts"]) > 0 and ok(measured["reads"]) > 0
        wait_until(puts_go, 20, f"after {name}: the folder takes writes again")
        self.verify(name, self.pair.ask("verify"))

    def verify(self, name, found):
        self.result["phases"].setdefault(name, {})["durable_after"] = found
        for side, what in found.items():
            if what["lost"]:
                raise Failure(f"after {name}: durable blocks are lost on the {side} device: "
                              f"{what}")

    def run_twin(self):
        self.pair = Pair(self.bin, self.folder / "twin", self.folder / "well", twin=True)
        baseline = self.measure("twin baseline")
        for kind in ("eio", "short", "slow", "hang", "gone", "torn"):
            self.fault(kind, lambda k=kind: self.pair.ask(f"fault {k}"),
                       lambda: self.pair.ask("heal"),
                       reads_go_on=kind not in ("hang", "gone"), baseline=baseline,
                       puts_go_on=kind in ("short", "slow", "torn"))
        self.pair.close()

    def run_file_system(self):
        self.disk = LoopDisk(self.folder, DISK_MEBIBYTES)
        sick, well = self.disk.mount_point / "sick", self.folder / "well2"
        # Full before the folder has all its extents: those that it has serve on.
        self.disk.fill(leave_bytes=40 << 20)
        self.pair = Pair(self.bin, sick, well)
        self.measure("few extents")
        baseline = self.measure("file system baseline")
        self.fault("full", self.disk.fill, self.disk.empty_again, reads_go_on=True,
                   baseline=baseline)
        wait_until(lambda: self.pair.ask("measure 0.2")["sick"]["extents"] > 8, 20,
                   "the space is used again")
        self.fault("frozen", self.disk.freeze, self.disk.thaw, reads_go_on=True,
                   baseline=baseline)
        self.disk.cut_power()
        dead = self.measure("dead")
        if ok(dead["well"]["puts"]) == 0 or ok(dead["sick"]["puts"]) > 0:
            raise Failure(f"dead: {dead}")
        self.pair.close()
        self.disk.power_on()
        self.pair = Pair(self.bin, sick, well)
        self.verify("dead", self.pair.opened)
        self.healthy_again("mounted anew")
        self.pair.close()

    def run(self):
        self.run_twin()
        if why_not():
            self.result["skipped"] = f"full, frozen, dead: {why_not()}"
            print(f"soak disk: skipped: {self.result['skipped']}", flush=True)
            return
        self.run_file_system()

    def end(self):
        if self.disk is not None and self.disk.frozen:
            self.disk.thaw()
        if self.pair is not None:
            self.pair.end()
        if self.disk is not None:
            self.disk.close()


def main():
    return run_soak("disk", Soak, soak_options(__doc__, "1.3 s per fault"))


if __name__ == "__main__":
    sys.exit(main())
