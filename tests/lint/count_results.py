#!/usr/bin/env python3
"""Adds up the results of test stages and prints the suite's last line; exit 1 on any failure.

A stage is given as NAME=0 (it ended well) or NAME=1. Its tests are in build/junit-NAME.xml; a stage
without that file is a build, and counts as one test.
"""
import argparse
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count_stage(name, ended_well):
    """Returns (passed, failed, skipped) of one stage."""
    path = pathlib.Path("build") / f"junit-{name}.xml"
    if not path.exists():
        if not ended_well:
            print(f"failed: {name} (did not build, or did not get as far as its tests)")
        return (1, 0, 0) if ended_well else (0, 1, 0)
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None:
            failed += 1
            print(f"failed: {name}: {case.get('name')}")
        elif case.find("skipped") is not None:
            skipped += 1
            print(f"skipped: {name}: {case.get('name')}")
        elif case.get("status") != "disabled":
            passed += 1
    if not ended_well and failed == 0:
        failed = 1
        print(f"failed: {name} (ended with an error though no test of it failed)")
    return passed, failed, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", metavar="NAME=CODE")
    totals = [0, 0, 0]
    for stage in parser.parse_args().stages:
        name, _, code = stage.partition("=")
        totals = [a + b for a, b in zip(totals, count_stage(name, code == "0"))]
    passed, failed, skipped = totals
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
