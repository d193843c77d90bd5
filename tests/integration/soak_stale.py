#!/usr/bin/env python3
"""Views of 1,000,000 blocks that leave while they are read (--short: 20,000).

A reader's lease is over; the block is evicted and the next one written into its place while he
reads.
No view that says it is intact may have shown other bytes. Those whose block was still there are not
counted; and other bytes must have been seen, else nothing was raced for.
"""
import json
import subprocess
import sys

from soak_support import Failure, run_soak, soak_options


class Soak:
    def __init__(self, arguments, folder):
        self.command = [str(arguments.bin / "soak_stale"), "--seed", str(arguments.seed),
                        "--races", "20000" if arguments.short else "1000000"]
        self.result = {"seed": arguments.seed}

    def run(self):
        done = subprocess.run(self.command, stdout=subprocess.PIPE, check=False, text=True)
        if not done.stdout.startswith("{"):
            raise Failure(f"soak_stale ended with {done.returncode}")
        self.result = json.loads(done.stdout)
        for name in ("wrong_bytes", "failed"):
            if self.result[name]:
                raise Failure(f"{name}: {self.result[name]}")
        for name in ("intact", "stale", "torn"):
            if not self.result[name]:
                raise Failure(f"no race of the kind '{name}'")

    def end(self):
        pass


def main():
    return run_soak("stale", Soak, soak_options(__doc__, "20,000 blocks"))


if __name__ == "__main__":
    sys.exit(main())
