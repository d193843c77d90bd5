#!/usr/bin/env python3
"""Real power cuts under an ssd store of two folders: 100 of them (--short: 3), then damage.

The store lies on an ext4 of its own (a loop device) that is shut down without writing its journal
(EXT4_IOC_SHUTDOWN) while a process works on the store. After each cut the store opens, and every
block acknowledged as durable and not deleted since is there in its version
(tests/storage/cold_oracle.h). Then single bits of copies are flipped (500; --short: 20), half in
extents and half in RocksDB's files, and pairs of 4 KiB pages of extents are swapped (200; --short:
10): a read gives the right bytes or none. Needs root and loop devices; exit 77 without.
"""
import os
import random
import shutil
import signal
import sys

from loop_disk import LoopDisk, why_not
from soak_support import ColdChild, Failure, pause_ms, run_soak, soak_options

PAGE = 4096
DISK_MEBIBYTES = 320
EXTENT_DAMAGES_PER_COPY = 5


def extents_of(store):
    return sorted(store.glob("*/extents/*.extent"))


def catalogue_of(store):
    return sorted(p for p in store.glob("*/catalogue/*") if p.is_file() and p.stat().st_size > 0
                  and p.name != "LOCK")


def place_in(files, draw, unit):
    """A random unit of all bytes of the files: (file, offset)."""
    at = draw.randrange(sum(f.stat().st_size // unit for f in files))
    for file in files:
        units = file.stat().st_size // unit
        if at < units:
            return file, at * unit
        at -= units
    raise AssertionError("no such place")


def flip_bit(file, offset, bit):
    with open(file, "r+b") as changed:
        changed.seek(offset)
        byte = changed.read(1)[0]
        changed.seek(offset)
        changed.write(bytes([byte ^ 1 << bit]))


def swap_pages(one, other):
    pages = []
    for file, offset in (one, other):
        with open(file, "rb") as source:
            source.seek(offset)
            pages.append(source.read(PAGE))
    for (file, offset), page in zip((one, other), reversed(pages)):
        with open(file, "r+b") as target:
            target.seek(offset)
            target.write(page)


class Soak:
    def __init__(self, arguments, folder):
        self.random = random.Random(arguments.seed)
        self.folder = folder
        short = arguments.short
        self.cuts, self.flips, self.swaps = (3, 20, 10) if short else (100, 500, 200)
        self.disk = None
        self.child = ColdChild(arguments.bin, folder / "mount/store", folder / "journal")
        self.result = {"seed": arguments.seed, "cuts": 0, "cuts_opening": 0,
                       "cuts_while_loading": 0, "cuts_working": 0, "blocks_judged": 0,
                       "spoilt_blocks_caught": 0}

    def cut_once(self):
        dice = self.random.randrange(6)
        mode = "eager" if dice == 1 else "work"
        child = self.child.start(mode, "cut", self.random.randrange(1 << 30))
        if dice == 0:
            pause_ms(self.random.uniform(0, 150))
            self.result["cuts_opening"] += 1
        elif dice == 1:
            self.child.expect(child, "working")
            pause_ms(self.random.uniform(0, 300))
            self.result["cuts_while_loading"] += 1
        else:
            self.count(self.child.expect(child, "checked"))
            self.child.expect(child, "working")
            pause_ms(self.random.uniform(20, 1200))
            self.result["cuts_working"] += 1
        self.child.note("cutting")
        self.disk.cut_power()
        pause_ms(self.random.uniform(0, 40))
        child.send(signal.SIGKILL)
        code = child.process.wait(20)
        # Judging or opening may see the dead disk first; broken promises have a code of their own.
        if code == 2 and "at version" in child.rest():
            raise Failure(f"at cut {self.result['cuts']}: {self.child.last_words(child)}")
        if code not in (-signal.SIGKILL, 2, 3):
            raise Failure(f"ended with {code}: {self.child.last_words(child)}")
        child.end()
        self.disk.power_on()

    def count(self, checked):
        self.result["blocks_judged"] += checked["here"]
        self.result["spoilt_blocks_caught"] += checked["corrupt"]
        if checked["rebuilt"]:
            raise Failure(f"a power cut has broken the catalogue: {checked}")

    def take_home(self):
        """A closed store, copied from the disk."""
        last = self.child.start("check", "cut", 0)
        self.count(self.child.expect(last, "checked"))
        if last.process.wait(60) != 0:
            raise Failure(f"closing: {self.child.last_words(last)}")
        last.end()
        home = self.folder / "home"
        shutil.copytree(self.disk.mount_point / "store", home)
        return home

    def copy_of(self, home):
        """With files of its own, but for extents, which are taken over where they are damaged."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(home, copy, copy_function=lambda source, target: os.link(source, target)
                        if source.endswith(".extent") else shutil.copy2(source, target))
        return copy

    @staticmethod
    def own(file):
        """The file is no longer shared with the original."""
        beside = file.with_suffix(".own")
        shutil.copy2(file, beside)
        beside.rename(file)
        return file

    def judge(self, copy, what, totals):
        child = self.child.start("check", "damage", 0, store=copy)
        try:
            checked = self.child.expect(child, "checked")
        except Failure as failure:
            raise Failure(f"{what}: {failure}") from failure
        finally:
            child.end()
        for name in ("here", "lost", "corrupt", "rebuilt", "opened_twice"):
            totals[name] += int(checked[name])
        totals["copies"] += 1

    def damage(self, home):
        def totals():
            return {"damages": 0, "copies": 0, "here": 0, "lost": 0, "corrupt": 0, "rebuilt": 0,
                    "opened_twice": 0}
        for name in ("flips_in_extents", "swaps_in_extents", "flips_in_catalogue"):
            self.result[name] = totals()
        for name, count in (("flips_in_extents", self.flips // 2),
                            ("swaps_in_extents", self.swaps)):
            total = self.result[name]
            while total["damages"] < count:
                copy, done = self.copy_of(home), []
                while len(done) < EXTENT_DAMAGES_PER_COPY and total["damages"] < count:
                    done.append(self.damage_extents(copy, name))
                    total["damages"] += 1
                self.judge(copy, done, total)
            print(f"soak powercut: {name}: {total}", flush=True)
        total = self.result["flips_in_catalogue"]
        while total["damages"] < self.flips - self.flips // 2:
            copy = self.copy_of(home)
            file, offset = place_in(catalogue_of(copy), self.random, 1)
            bit = self.random.randrange(8)
            flip_bit(file, offset, bit)
            total["damages"] += 1
            self.judge(copy, f"bit {bit} of byte {offset} of {file}", total)
        print(f"soak powercut: flips_in_catalogue: {total}", flush=True)

    def damage_extents(self, copy, name):
        extents = extents_of(copy)
        if name == "flips_in_extents":
            file, offset = place_in(extents, self.random, 1)
            bit = self.random.randrange(8)
            flip_bit(self.own(file), offset, bit)
            return f"bit {bit} of byte {offset} of {file}"
        one = place_in(extents, self.random, PAGE)
        near = [one[0]] if self.random.randrange(2) else extents
        other = place_in(near, self.random, PAGE)
        for file in {one[0], other[0]}:
            self.own(file)
        swap_pages(one, other)
        return f"page {one} with page {other}"

    def run(self):
        self.disk = LoopDisk(self.folder, DISK_MEBIBYTES)
        while self.result["cuts"] < self.cuts:
            self.cut_once()
            self.result["cuts"] += 1
            if self.result["cuts"] % max(self.cuts // 20, 3) == 0:
                print(f"soak powercut: {self.result['cuts']} of {self.cuts} cuts, "
                      f"{self.result['blocks_judged']} blocks judged, "
                      f"{self.result['spoilt_blocks_caught']} spoilt ones caught", flush=True)
        self.damage(self.take_home())

    def end(self):
        self.child.end()
        if self.disk is not None:
            self.disk.close(keep_image=self.result.get("failed") not in ("", "interrupted"))


def main():
    return run_soak("powercut", Soak, soak_options(__doc__, "3 cuts, 20 flips, 10 swaps"),
                    skip=why_not(), keep=True)


if __name__ == "__main__":
    sys.exit(main())
