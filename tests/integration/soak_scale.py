#!/usr/bin/env python3
"""An ssd folder that knows 8,000,000 blocks (--short: 200,000), without their bytes.

Measured and held to a bound: open at once; loaded in at most twice the time of a bare scan of the
catalogue's metadata; resident memory of at most 64 MiB and 48 bytes a block; and while a namespace
of an eighth of the blocks is deleted, the longest that a reader waits for an answer. The blocks go
through ColdFolder::Put on extents that store nothing.
"""
import json
import subprocess
import sys

from soak_support import Failure, run_soak, soak_options

OPEN_SECONDS = 2
LOAD_PER_SCAN = 2
# Of small numbers a start's own costs are the larger part.
LOAD_SLACK_SECONDS = 0.5
MEMORY_BYTES, BYTES_PER_BLOCK = 64 << 20, 48
LONGEST_MS = 50
LONGEST_MS_SHORT = 250  # among other tests


class Soak:
    def __init__(self, arguments, folder):
        self.blocks = 200_000 if arguments.short else 8_000_000
        self.longest_ms = LONGEST_MS_SHORT if arguments.short else LONGEST_MS
        self.command = [arguments.bin / "soak_scale", "--folder", folder / "ssd", "--blocks",
                        str(self.blocks), "--seed", str(arguments.seed)]
        self.result = {"seed": arguments.seed, "blocks": self.blocks}

    def do(self, mode):
        done = subprocess.run([*self.command, mode], stdout=subprocess.PIPE, text=True,
                              check=False)
        if done.returncode != 0 or not done.stdout.startswith("{"):
            raise Failure(f"{mode} ended with {done.returncode}: {done.stdout.strip()}")
        self.result[mode] = json.loads(done.stdout)
        print(f"soak scale: {mode}: {done.stdout.strip()}", flush=True)
        return self.result[mode]

    def run(self):
        filled = self.do("fill")
        if filled["failed"]:
            raise Failure(f"{filled['failed']} puts failed: {filled['first_error']}")
        scan = self.do("scan")
        load = self.do("load")
        bounds = {
            "all blocks are loaded": (scan["seen"] - load["blocks"], 0),
            "seconds to open": (load["open_s"], OPEN_SECONDS),
            "seconds to load": (load["loaded_s"],
                                LOAD_PER_SCAN * scan["scan_s"] + LOAD_SLACK_SECONDS),
            "resident bytes": (load["resident_bytes"],
                               MEMORY_BYTES + BYTES_PER_BLOCK * load["blocks"]),
            "blocks of the namespace left": (
                load["blocks_after"] - load["blocks"] + self.blocks // 8, 0),
            "reads that failed": (load["reader"]["failed"], 0),
            "longest wait in ms while a namespace is deleted": (
                load["reader"]["longest_ms"], self.longest_ms),
        }
        self.result["bounds"] = {name: {"is": value, "at_most": most}
                                 for name, (value, most) in bounds.items()}
        missed = [f"{name}: {value}, more than {most}"
                  for name, (value, most) in bounds.items() if value > most]
        if missed:
            raise Failure("; ".join(missed))

    def end(self):
        """No program outlives its call."""


def main():
    return run_soak("scale", Soak, soak_options(__doc__, "200,000 blocks"))


if __name__ == "__main__":
    sys.exit(main())
