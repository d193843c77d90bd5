"""What the soaks share: their run from options to result, child programs, waiting."""
import argparse
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
INTERRUPTED = 130  # a program's exit code
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


class Node:
    """terraced, and what can be seen of it from outside; what it logs goes to `log`."""

    def __init__(self, bin_folder, log, *options, transport="tcp", supervisor="off"):
        self.bin = bin_folder
        with open(log, "ab") as errors:
            self.program = Program([bin_folder / "terraced", "--transport", transport,
                                    "--supervisor", supervisor, "--listen", "127.0.0.1:0",
                                    "--http-listen", "127.0.0.1:0", *options], stderr=errors)
        try:
            ready = self.program.line("terraced ready", 120)
        except Failure as failure:
            self.end()
            raise Failure(f"{failure}; it said: {log.read_text(errors='replace')[-2000:]}") \
                from failure
        except BaseException:
            self.end()
            raise
        said = dict(p.split("=", 1) for p in ready.split() if "=" in p)
        self.address, self.http = said["control"], said["http"]
        self.data = said["data"].split(",")

    def ask(self, *what):
        command = [self.bin / "terracectl", "--address", self.address, "--json", *what]
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if out.returncode != 0:
            raise Failure(f"the node does not answer: {out.stderr.strip()}")
        return json.loads(out.stdout.splitlines()[-1])  # before it: progress

    def metric(self, name, **labels):
        """The sum of all samples of that name that carry these labels."""
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        try:
            with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=20) as page:
                lines = page.read().decode().splitlines()
        except OSError as error:
            raise Failure(f"the node does not answer: {error}") from error
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if re.split("[{ ]", line, maxsplit=1)[0] == name
                   and all(label in line for label in wanted))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.program.process.pid}/fd"))

    def resident_bytes(self):
        text = pathlib.Path(f"/proc/{self.program.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def alive(self):
        return self.program.process.poll() is None

    def send(self, number):
        self.program.send(number)

    def stop(self, seconds):
        """Ends it as an operator does; its exit code."""
        self.send(signal.SIGTERM)
        code = self.program.process.wait(seconds)
        self.end()
        return code

    def end(self, number=signal.SIGKILL):
        self.program.end(number)


class Load:
    """terrace-load at work on a node."""

    def __init__(self, node, report, *options):
        self.report_path = report
        self.program = Program([node.bin / "terrace-load", "--address", node.address,
                                "--json", report, *options])

    def running(self):
        return self.program.process.poll() is None

    def report(self):
        """What it found, after it has ended or was interrupted; Failure where bytes were wrong or
        requests failed. How late answers came is not judged here."""
        code = self.program.process.wait(20)
        said = self.program.rest()
        self.end()
        if code not in (0, 1, INTERRUPTED):
            raise Failure(f"terrace-load ended with {code}: {said}")
        found = json.loads(self.report_path.read_text())
        if found["wrong_bytes"] or found["errors"] or found["unreachable"]:
            raise Failure(f"terrace-load: not all is well: {found}")
        return found

    def end(self):
        self.program.end()


def finish(result, path):
    """Prints the result, writes it to `path` where one is given; the exit code."""
    text = json.dumps(result, indent=2)
    if path:
        pathlib.Path(path).write_text(text)
    print(text)
    return 1 if result["failed"] else 0


def soak_parser(text, short):
    parser = argparse.ArgumentParser(description=text,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=short)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", help="where its files lie (default: the system's for "
                                         "temporary files)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin",
                        help="folder of the programs")
    return parser


def soak_options(text, short):
    return soak_parser(text, short).parse_args()


def ignore_interrupts():
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)


def interrupt(_number, _frame):
    ignore_interrupts()  # one is enough: what follows is the clean-up
    raise KeyboardInterrupt


def run_soak(name, soak_class, arguments, skip="", keep=False):
    """Runs `soak_class(arguments, folder)` in a folder of its own and ends it; the exit code.

    `skip` says why there is nothing to run. With `keep` the folder of a failure stays.
    """
    if skip:
        print(f"soak {name}: skipped: {skip}")
        return SKIPPED
    print(f"soak {name}: seed {arguments.seed}", flush=True)
    # Whoever ends the soak ends it by an exception, so that nothing stays running or mounted.
    for number in INTERRUPTS:
        signal.signal(number, interrupt)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"terrace-{name}-", dir=arguments.folder))
    soak = soak_class(arguments, folder)
    try:
        soak.run()
        soak.result["failed"] = ""
    except (Failure, subprocess.TimeoutExpired) as failure:
        soak.result["failed"] = str(failure)
    except KeyboardInterrupt:
        soak.result["failed"] = "interrupted"
    finally:
        ignore_interrupts()
        soak.end()
        if keep and soak.result.get("failed") not in ("", "interrupted"):
            soak.result["kept"] = str(folder)
        else:
            shutil.rmtree(folder)
    return finish(soak.result, arguments.json)


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
