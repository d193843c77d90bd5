#!/usr/bin/env python3
"""A process that works on an ssd store of two folders is killed 1,000 times (--short: 20).

Kills strike while it writes, deletes, evicts and reads, while it opens and loads, and while it
works during loading. After each the store opens, every block that was acknowledged and not
deleted since is there in its version, and no byte is wrong (tests/storage/cold_oracle.h). The
seed reproduces the moments of the kills.
"""
import random
import signal
import sys

from soak_support import ColdChild, Failure, pause_ms, run_soak, soak_options


class Soak:
    def __init__(self, arguments, folder):
        self.random = random.Random(arguments.seed)
        self.kills = 20 if arguments.short else 1000
        self.child = ColdChild(arguments.bin, folder / "store", folder / "journal")
        self.result = {"seed": arguments.seed, "kills": 0, "kills_opening": 0,
                       "kills_while_loading": 0, "kills_working": 0, "blocks_judged": 0,
                       "journal_lines": 0}

    def kill_once(self):
        """A start in four is struck early; one in four works before the store has loaded."""
        dice = self.random.randrange(4)
        seed = self.random.randrange(1 << 30)
        child = self.child.start("eager" if dice == 1 else "work", "kill", seed)
        if dice == 0:
            pause_ms(self.random.uniform(0, 120))
            self.result["kills_opening"] += 1
        elif dice == 1:
            self.child.expect(child, "working")
            pause_ms(self.random.uniform(0, 60))
            self.result["kills_while_loading"] += 1
        else:
            checked = self.child.expect(child, "checked")
            self.result["blocks_judged"] += checked["here"]
            if checked["lost_at_load"] or checked["rebuilt"]:
                raise Failure(f"a kill has harmed the catalogue: {checked}")
            self.child.expect(child, "working")
            pause_ms(self.random.expovariate(1 / 300))
            self.result["kills_working"] += 1
        child.send(signal.SIGKILL)
        if child.process.wait(20) != -signal.SIGKILL:
            raise Failure(f"ended by itself: {self.child.last_words(child)}")
        self.result["journal_lines"] += self.child.journal_lines()
        child.end()

    def run(self):
        while self.result["kills"] < self.kills:
            self.kill_once()
            self.result["kills"] += 1
            if self.result["kills"] % max(self.kills // 20, 5) == 0:
                print(f"soak crash: {self.result['kills']} of {self.kills} killed, "
                      f"{self.result['blocks_judged']} blocks judged", flush=True)
        last = self.child.start("check", "kill", 0)
        self.result["last"] = self.child.expect(last, "checked")
        last.end()

    def end(self):
        self.child.end()


def main():
    return run_soak("crash", Soak, soak_options(__doc__, "20 kills"), keep=True)


if __name__ == "__main__":
    sys.exit(main())
