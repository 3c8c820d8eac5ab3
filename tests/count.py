#!/usr/bin/env python3
"""Counts the test cases of a `meson test` run.

    count.py TESTLOG.json SKIPPED

Prints "passed failed skipped". A doctest program counts by its test cases, a unittest program by
its tests, anything else as one. Sentences in which tests said why they skip go to the file SKIPPED.
"""
import json
import re
import sys

DOCTEST = re.compile(r"test cases: *\d+ \| *(\d+) passed \| *(\d+) failed")
UNITTEST = re.compile(r"^Ran (\d+) tests?", re.M)
UNITTEST_FAILED = re.compile(r"(?:failures|errors|unexpected successes)=(\d+)")
UNITTEST_SKIPPED = re.compile(r"skipped=(\d+)")
SAID_SKIPPED = re.compile(r"MESSAGE: (skipped:.*)|MESSAGE: (skipped in part:.*)|\.\.\. skipped '(.*)'")


def count(test):
    """One test of meson's: (passed, failed, skipped, sentences)."""
    text = test.get("stdout", "") + "\n" + test.get("stderr", "")
    said = [match for match in SAID_SKIPPED.finditer(text)]
    sentences = [next(filter(None, match.groups())) for match in said]
    went_well = test["result"] in ("OK", "EXPECTEDFAIL")
    if test["result"] == "SKIP":
        return 0, 0, 1, sentences or [f"skipped: {test['name']}"]
    passed, failed, skipped = 1, 0, 0
    if cases := DOCTEST.search(text):
        passed, failed = int(cases[1]), int(cases[2])
        skipped = sum(match[1] is not None for match in said)
        passed -= skipped
    elif ran := UNITTEST.search(text):
        failed = sum(map(int, UNITTEST_FAILED.findall(text)))
        skipped = sum(map(int, UNITTEST_SKIPPED.findall(text)))
        passed = int(ran[1]) - failed - skipped
    if not went_well and failed == 0:  # a crash, a time limit, a sanitizer
        passed, failed = max(passed - 1, 0), 1
    return passed, failed, skipped, sentences


def main():
    totals = [0, 0, 0]
    with open(sys.argv[1], encoding="utf-8") as log, open(sys.argv[2], "a", encoding="utf-8") as skipped_file:
        for line in log:
            *counts, sentences = count(json.loads(line))
            totals = [total + more for total, more in zip(totals, counts)]
            skipped_file.writelines(sentence + "\n" for sentence in sentences)
    print(*totals)


if __name__ == "__main__":
    main()
