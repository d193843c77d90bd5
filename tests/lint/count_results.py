#!/usr/bin/env python3
"""Adds up JUnit files and prints the suite's last line; exit 1 when anything failed."""
import argparse
import sys
import xml.etree.ElementTree as ElementTree


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failed-stages", type=int, default=0,
                        help="stages that failed; one whose tests all passed did not build")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    total = failed = skipped = 0
    for path in arguments.files:
        try:
            suite = ElementTree.parse(path).getroot()
        except (OSError, ElementTree.ParseError) as error:
            print(f"{path}: {error}")
            failed += 1
            continue
        for case in suite.iter("testcase"):
            total += 1
            if case.find("failure") is not None:
                failed += 1
                print(f"failed: {case.get('name')}")
            elif case.find("skipped") is not None:
                skipped += 1
                print(f"skipped: {case.get('name')}")
    passed = total - failed - skipped
    # A stage that failed with no failed test did not build, or did not get as far as its tests.
    failed = max(failed, arguments.failed_stages)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())
