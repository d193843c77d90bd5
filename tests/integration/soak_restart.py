#!/usr/bin/env python3
"""A node that is stopped in the middle of a trace and goes on with what its ssd tier has.

The first half of the requests is replayed, the node is stopped by SIGTERM and started again on
its folder, and the other half is replayed. No byte is wrong and no request fails, both tiers are
hit, and of all blocks asked for at least a share is hit: .98 of what a cache without end and
without restarts would, unless --least-hit-rate says another. --kill: SIGKILL instead; what was in
host memory alone is gone, so that the share is not looked at, but what was on ssd is still there.
Without --trace the requests are made up (12,000; --short: 600).
"""
import json
import pathlib
import random
import signal
import sys

from soak_support import Failure, Load, Node, run_soak, soak_parser, wait_until

LEAST_OF_ENDLESS = 0.98
LEAST_KEPT = 0.95  # of the blocks on ssd: it makes room until it is killed
REPLAY_SECONDS = 3600
LOAD_SECONDS = 60
STOP_SECONDS = 60


def conversations(draw, requests, pool):
    """Requests as lists of block ids: each of `pool` conversations at a time begins with one of
    eight prompts, and asks in each turn for all of its blocks so far and a few more."""
    going = [([], 0)] * pool
    next_id = 64
    for _ in range(requests):
        at = draw.randrange(pool)
        ids, turns_left = going[at]
        if turns_left == 0:
            prompt = 8 * draw.randrange(8)
            ids, turns_left = list(range(prompt, prompt + 8)), draw.randint(1, 12)
        more = draw.randint(1, 6)
        ids = ids + list(range(next_id, next_id + more))
        next_id += more
        going[at] = ids, turns_left - 1
        yield ids


def endless_hit_rate(lines):
    seen, hits, blocks = set(), 0, 0
    for line in lines:
        ids = json.loads(line)["hash_ids"]
        hits += next((at for at, each in enumerate(ids) if each not in seen), len(ids))
        blocks += len(ids)
        seen.update(ids)
    return hits / blocks


class Soak:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.node = self.load = None
        self.result = {"seed": arguments.seed,
                       "stopped_by": "SIGKILL" if arguments.kill else "SIGTERM", "halves": []}

    def requests(self):
        if self.arguments.trace:
            lines = self.arguments.trace.read_text(encoding="utf-8").splitlines()
            return [line for line in lines if line.strip()]
        count, pool = (600, 200) if self.arguments.short else (12_000, 3000)
        made = conversations(random.Random(self.arguments.seed), count, pool)
        return [json.dumps({"hash_ids": ids}) for ids in made]

    def start(self):
        a = self.arguments
        self.node = Node(a.bin, self.folder / "node.log", "--host-bytes", a.host_bytes, "--ssd",
                         f"{self.folder / 'ssd'}:{a.ssd_bytes}", "--stop-timeout",
                         f"{STOP_SECONDS}s")

    def replay(self, lines):
        trace = self.folder / "trace"
        trace.write_text("\n".join(lines))
        self.load = Load(self.node, self.folder / "report", "--trace", trace, "--block-bytes",
                         self.arguments.block_bytes)
        wait_until(lambda: not self.load.running(), REPLAY_SECONDS, "the end of the replay")
        found = self.load.report()
        half = {name: found[name] for name in
                ("requests", "blocks_requested", "hits", "hit_rate", "wrong_bytes", "errors",
                 "timeouts", "stuck", "no_space", "elapsed_s")}
        self.result["halves"].append(half)
        print(f"soak restart: {half['requests']} requests, {half['blocks_requested']} blocks, "
              f"hits {half['hits']}, {half['elapsed_s']:.0f} s", flush=True)

    def stop(self):
        # The ssd tier has half of the time in any case, whatever came before.
        code = self.node.stop(2 * STOP_SECONDS)
        if code != 0:
            raise Failure(f"the node ended with {code}")

    def kill(self):
        """And starts it: what was on ssd is there again."""
        before = self.node.metric("terrace_tier_blocks", tier="ssd")
        self.node.end(signal.SIGKILL)
        self.start()
        wait_until(lambda: self.node.metric("terrace_ssd_load_progress") == 1, LOAD_SECONDS,
                   "the ssd tier is loaded")
        after = self.node.metric("terrace_tier_blocks", tier="ssd")
        self.result["ssd_blocks"] = {"before": int(before), "after": int(after)}
        if after < before * LEAST_KEPT:
            raise Failure(f"of {before} blocks on ssd {after} are there after a kill")

    def judge(self, endless):
        halves = self.result["halves"]
        hits = {tier: sum(half["hits"].get(tier, 0) for half in halves)
                for tier in ("host", "ssd")}
        rate = sum(hits.values()) / sum(half["blocks_requested"] for half in halves)
        self.result |= {"hits": hits, "hit_rate": round(rate, 4)}
        if not all(hits.values()) or not halves[1]["hits"].get("ssd"):
            raise Failure("a tier was never hit, or the ssd tier not after the restart")
        if self.arguments.kill:
            return
        least = self.arguments.least_hit_rate
        if least is None:
            least = endless * LEAST_OF_ENDLESS
        self.result["least_hit_rate"] = round(least, 4)
        if rate < least:
            raise Failure(f"a hit rate of {rate:.4f}, less than {least:.4f}")

    def run(self):
        lines = self.requests()
        endless = endless_hit_rate(lines)
        self.result |= {"requests": len(lines), "endless_hit_rate": round(endless, 4)}
        self.start()
        self.replay(lines[:len(lines) // 2])
        if self.arguments.kill:
            self.kill()
        else:
            self.stop()
            self.start()
        self.replay(lines[len(lines) // 2:])
        self.stop()
        self.judge(endless)

    def end(self):
        for program in (self.load, self.node):
            if program is not None:
                program.end()


def options():
    parser = soak_parser(__doc__, "600 requests, a host tier of 64 MiB")
    parser.add_argument("--trace", metavar="FILE", type=pathlib.Path,
                        help="JSON lines with hash_ids")
    parser.add_argument("--kill", action="store_true", help="by SIGKILL")
    parser.add_argument("--least-hit-rate", metavar="SHARE", type=float)
    parser.add_argument("--block-bytes", metavar="N", default="64KiB")
    parser.add_argument("--host-bytes", metavar="N", help="default: 1GiB")
    parser.add_argument("--ssd-bytes", metavar="N", help="default: 16GiB")
    arguments = parser.parse_args()
    arguments.host_bytes = arguments.host_bytes or ("64MiB" if arguments.short else "1GiB")
    arguments.ssd_bytes = arguments.ssd_bytes or ("512MiB" if arguments.short else "16GiB")
    return arguments


def main():
    return run_soak("restart", Soak, options(), keep=True)


if __name__ == "__main__":
    sys.exit(main())
