"""What the soaks share: child programs, waiting, the result."""
import argparse
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failure(Exception):
    """What was expected and did not come."""


def wait_until(condition, seconds, what):
    """Polls `condition` until it returns something true; Failure after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = select.poll()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f"not within {seconds} s: {what}")
        pause.poll(20)


class Program:
    """A child process whose standard output is read line by line, with a deadline."""

    def __init__(self, arguments, stdin=None, stderr=subprocess.DEVNULL):
        self.process = subprocess.Popen(arguments, stdin=stdin, stdout=subprocess.PIPE,
                                        stderr=stderr)
        self.buffer = b""
        self.lines = []  # that nobody waited for

    def line(self, prefix, seconds):
        deadline = time.monotonic() + seconds
        while True:
            while b"\n" in self.buffer:
                text, self.buffer = self.buffer.split(b"\n", 1)
                if text.startswith(prefix.encode()):
                    return text.decode()
                self.lines = self.lines[-20:] + [text.decode()]
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            chunk = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                raise Failure(f"no line '{prefix}' from {self.process.args[0]}")
            self.buffer += chunk

    def rest(self):
        """What it said last, for a report after its end."""
        try:
            self.process.wait(5)
            text = self.buffer + self.process.stdout.read()
        except subprocess.TimeoutExpired:
            text = b""
        return "; ".join(self.lines + text.decode(errors="replace").splitlines()) or "nothing"

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        self.process.wait(20)
        self.process.stdout.close()


def finish(result, path):
    """Prints the result, writes it to `path` where one is given; the exit code."""
    text = json.dumps(result, indent=2)
    if path:
        pathlib.Path(path).write_text(text)
    print(text)
    return 1 if result["failed"] else 0


def soak_options(text, short):
    parser = argparse.ArgumentParser(description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=short)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", help="where the store lies (default: the system's for "
                                         "temporary files)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin",
                        help="folder of the programs")
    return parser.parse_args()


def pause_ms(milliseconds):
    select.poll().poll(milliseconds)


class ColdChild:
    """cold_crash_child, one at a time, on one store and journal."""

    def __init__(self, bin_folder, store, journal):
        self.program = bin_folder.parent / "tests/cold_crash_child"
        self.store, self.journal = store, journal
        self.errors = journal.with_name("errors")
        self.running = None

    def start(self, mode, after, seed, store=None):
        with open(self.errors, "wb") as errors:
            self.running = Program([self.program, mode, after, store or self.store, self.journal,
                                    str(seed)], stderr=errors)
        return self.running

    def expect(self, child, word):
        """The child's next such line, its JSON where it has some."""
        try:
            line = child.line(word, 120)
        except Failure as failure:
            raise Failure(f"{failure}; it said: {self.last_words(child)}") from failure
        return json.loads(line[len(word):]) if "{" in line else line

    def note(self, word):
        with open(self.journal, "a", encoding="utf-8") as journal:
            journal.write(f"{word} 0 0\n")

    def last_words(self, child):
        return f"{child.rest()}; {self.errors.read_text(errors='replace')[-2000:]}"

    def journal_lines(self):
        try:
            return self.journal.read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def end(self):
        if self.running is not None:
            self.running.end()
