#!/usr/bin/env python3
"""Style as a test. Prints one line per finding, `file:line: what`; exit 1 when there are any.

Checks what a compiler does not: the direction of includes, the one home of each third-party
library, lengths, banned calls, paths named in documents, READMEs of folders.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["proto", "kernels", "storage", "cluster", "cache_node", "client"]
MAY_INCLUDE = {
    "proto": {"proto"},
    "kernels": {"kernels"},
    "storage": {"storage", "proto"},
    "cluster": {"cluster", "proto"},
    "cache_node": {"cache_node", "kernels", "storage", "cluster", "proto"},
    "client": {"client", "kernels", "cluster", "proto"},
    "tests": set(FOLDERS) | {"tests"},
}
# Prefix of an included header -> folders in which it is at home. tests/ may include everything.
THIRD_PARTY_HOME = {
    "openssl/": {"proto"},
    "isa-l": {"proto"},
    "spdlog/": {"proto"},
    "prometheus/": {"proto"},
    "CLI/": {"proto"},
    "grpcpp/": {"cache_node", "client"},
    "google/protobuf": {"cache_node", "client"},
    "rocksdb/": {"storage"},
    "liburing.h": {"storage"},
    "ucp/": {"cluster"},
    "uct/": {"cluster"},
    "ucs/": {"cluster"},
    "httplib.h": {"cache_node"},
    "systemd/": {"cache_node"},
    "nlohmann/": {"client"},
    "cuda": {"kernels"},
    "absl/": {"proto", "storage", "cluster", "cache_node", "client"},
    "fmt/": {"proto", "storage", "cluster", "cache_node", "client"},
}
# Headers that are heavy to compile stay in few files, however right their folder is.
HEAVY = {"grpcpp/": 8, "ucp/": 8, "httplib.h": 1, "systemd/": 1, "CLI/": 1}
BANNED = [
    (r"\bsleep_for\b|\busleep\(|\bnanosleep\(|\btime\.sleep\(",
     "wait for a condition, not for time"),
    (r"\bTODO\b|\bFIXME\b|\bXXX\b", "finish it or write it down in docs"),
    (r"\babsl::Mutex\b|\bstd::mutex\b", "use proto/mutex.h"),
    (r"\brand\(\)|\bsrand\(", "use a seeded generator"),
    (r"\bstrcpy\(|\bsprintf\(|\batoi\(", "use fmt, std::from_chars"),
    (r"\bstd::regex\b", "write a parser; std::regex throws and recurses"),
    (r"^\s*#if 0", "dead code"),
]
# file -> banned patterns that are its very purpose.
ALLOWED = {
    "proto/mutex.h": {"use proto/mutex.h"},
    "kernels/host_twin.cc": {"use proto/mutex.h"},
    # An interval that a person asked for, and a pause while the node is away.
    "client/terracectl/stats_command.cc": {"wait for a condition, not for time"},
    "client/load/replay.cc": {"wait for a condition, not for time"},
    # A random moment for a kill, and the second over which idleness is measured.
    "tests/cluster/transport_processes_test.cc": {"wait for a condition, not for time"},
    "tests/lint/lint.py": {message for _, message in BANNED},
}
MAX_LINE = 100
MAX_FUNCTION = 70
MAX_FILE = {".cc": 700, ".cu": 700, ".h": 300, ".py": 700}
MAX_TEST_FILE = 1000


def tracked_files():
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(f for f in out.stdout.split("\n") if f and (ROOT / f).is_file())


def include_findings(path, lines):
    folder = path.split("/")[0]
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not match:
            continue
        header = match[1]
        target = header.split("/")[0]
        if target in MAY_INCLUDE and target not in MAY_INCLUDE[folder]:
            yield number, f"{folder}/ must not include {header}: dependencies point one way"
        for prefix, homes in THIRD_PARTY_HOME.items():
            if header.startswith(prefix) and folder != "tests" and folder not in homes:
                yield number, f"{header} is at home in {', '.join(sorted(homes))} only"


def length_findings(path, lines):
    suffix = pathlib.Path(path).suffix
    limit = MAX_TEST_FILE if path.startswith("tests/") else MAX_FILE.get(suffix)
    if limit and len(lines) > limit:
        yield limit, f"file has {len(lines)} lines, more than {limit}: split it by idea"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            yield number, f"line has {len(line)} characters, more than {MAX_LINE}"


def function_findings(lines):
    """A body opens with `{` at the end of a line that follows a `)`, and closes at its indent."""
    start, indent = None, ""
    for number, line in enumerate(lines, 1):
        if start is None:
            opens = re.match(r"^(\s{0,4})\S.*\{$", line)
            if opens and not re.match(r"\s*(class|struct|namespace|enum|union|extern)\b", line):
                if ")" in line or (number > 1 and ")" in lines[number - 2]):
                    # A constructor's initialisers stand four columns right of it.
                    initialisers = line.lstrip().startswith(":")
                    start, indent = number, opens[1][4:] if initialisers else opens[1]
        elif line.startswith(indent + "}"):
            if number - start > MAX_FUNCTION:
                yield start, f"function has {number - start} lines, more than {MAX_FUNCTION}"
            start = None


def banned_findings(path, lines):
    for number, line in enumerate(lines, 1):
        for pattern, message in BANNED:
            if message in ALLOWED.get(path, ()):
                continue
            if message == "use proto/mutex.h" and path.startswith("tests/kernels/"):
                continue
            if re.search(pattern, line):
                yield number, f"'{re.search(pattern, line)[0].strip()}': {message}"


def document_findings(path, lines):
    """Each path in backticks that starts with a folder of ours must exist."""
    heads = "|".join(FOLDERS + ["tests", "docs", "cmake"])
    for number, line in enumerate(lines, 1):
        for name in re.findall(rf"`((?:{heads})/[\w./-]*)`", line):
            candidate = ROOT / name
            if not (candidate.exists() or list(candidate.parent.glob(candidate.name + ".*"))):
                yield number, f"names {name}, which does not exist"


def tree_findings(files):
    for folder in FOLDERS + ["tests"]:
        readme = ROOT / folder / "README.md"
        if not readme.exists():
            yield f"{folder}/README.md", 1, "is missing: why, what belongs, what does not"
        elif len(readme.read_text().splitlines()) > 40:
            yield f"{folder}/README.md", 41, "has more than 40 lines"
    for prefix, most in HEAVY.items():
        users = [f for f in files if not f.startswith("tests/") and f.endswith((".h", ".cc"))
                 and re.search(rf'#\s*include\s+["<]{re.escape(prefix)}', (ROOT / f).read_text())]
        if len(users) > most:
            yield users[-1], 1, f"{prefix} is included by {len(users)} files, more than {most}"


def script_findings(files):
    """Scripts that bash cannot read."""
    for path in files:
        file = ROOT / path
        if pathlib.Path(path).suffix not in {"", ".sh"} or not file.is_file():
            continue
        with file.open("rb") as script:
            if not re.match(rb"#!.*\bbash\b", script.readline()):
                continue
        read = subprocess.run(["bash", "-n", file], stderr=subprocess.PIPE, text=True, check=False)
        for number in re.findall(r"line (\d+)", read.stderr)[:1]:
            yield path, int(number), "bash cannot read it"


def main():
    files = tracked_files()
    findings = list(tree_findings(files)) + list(script_findings(files))
    for path in files:
        suffix = pathlib.Path(path).suffix
        if suffix not in {".h", ".cc", ".cu", ".cuh", ".py", ".md", ".proto", ".cmake", ".sh"}:
            continue
        lines = (ROOT / path).read_text().splitlines()
        checks = []
        if suffix in {".h", ".cc", ".cu", ".cuh"} and path.split("/")[0] in MAY_INCLUDE:
            checks += [include_findings(path, lines), function_findings(lines)]
        if suffix == ".md":
            checks.append(document_findings(path, lines))
        else:
            checks += [length_findings(path, lines), banned_findings(path, lines)]
        findings += [(path, number, what) for check in checks for number, what in check]
    for path, number, what in findings:
        print(f"{path}:{number}: {what}")
    print(f"lint: {len(files)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
