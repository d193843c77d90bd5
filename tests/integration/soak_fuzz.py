#!/usr/bin/env python3
"""Runs each fuzz target for ten minutes (--short: ten seconds) from its corpus.

Exit 1 when a target crashed; the input is left in build/fuzz/findings and belongs, once mended,
into tests/fuzz/corpus, where it replays in every ./dev test.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_target(program, seconds, seed):
    name = program.name.removeprefix("fuzz_")
    findings = ROOT / "build/fuzz/findings" / name
    work = ROOT / "build/fuzz/work" / name
    for folder in (findings, work):
        folder.mkdir(parents=True, exist_ok=True)
    for source in (ROOT / "tests/fuzz/corpus" / name).iterdir():
        shutil.copy(source, work)
    result = subprocess.run(
        [program, f"-max_total_time={seconds}", f"-seed={seed}", "-timeout=10",
         "-rss_limit_mb=2048", "-max_len=65536", "-print_final_stats=1",
         f"-artifact_prefix={findings}/", work],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    executed = [line.split()[-1] for line in result.stdout.splitlines()
                if line.startswith("stat::number_of_executed_units")]
    if result.returncode != 0:
        print(result.stdout[-4000:])
    return {"target": name, "seconds": seconds, "executions": int(executed[0]) if executed else 0,
            "crashed": result.returncode != 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="ten seconds a target")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 31))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", metavar="NAME", action="append",
                        help="this target (may be given several times)")
    arguments = parser.parse_args()
    programs = sorted((ROOT / "build/fuzz/fuzz").glob("fuzz_*"))
    if arguments.only:
        programs = [p for p in programs if p.name.removeprefix("fuzz_") in arguments.only]
    if not programs:
        print("soak fuzz: no such targets in build/fuzz/fuzz", file=sys.stderr)
        return 2
    seconds = 10 if arguments.short else 600
    print(f"soak fuzz: {len(programs)} targets, {seconds} s each, seed {arguments.seed}",
          flush=True)

    def run_and_tell(program):
        result = run_target(program, seconds, arguments.seed)
        print(f"  {result['target']}: {result['executions']:,} executions, "
              f"{'CRASHED' if result['crashed'] else 'no finding'}", flush=True)
        return result

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:  # one target per core
        results = list(pool.map(run_and_tell, programs))
    crashed = sum(r["crashed"] for r in results)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({"seed": arguments.seed, "crashed": crashed, "targets": results}, indent=2))
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())
