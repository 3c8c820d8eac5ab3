#!/usr/bin/python3
"""rdma_core.py LAUNCHER LEAST [EXPECTED_FAILURE]...

Runs rdma-core's own Python tests under the software NIC. Passes when at least LEAST of them pass, and
those that fail are among the expected ones. The lists are printed: the number passed is a figure.
"""
import glob
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = "/usr/share/doc/rdma-core/tests"
launcher, least, expected = os.path.abspath(sys.argv[1]), int(sys.argv[2]), set(sys.argv[3:])

if not os.path.exists(SOURCE + "/run_tests.py"):
    print(f"SKIP: {SOURCE} is not there (Debian: apt-get install python3-pyverbs)")
    sys.exit(77)

with tempfile.TemporaryDirectory() as place:
    tests = place + "/tests"
    shutil.copytree(SOURCE, tests)
    for packed in glob.glob(tests + "/*.gz"):
        with gzip.open(packed) as source, open(packed[:-3], "wb") as target:
            shutil.copyfileobj(source, target)
        os.remove(packed)
    environment = dict(os.environ, POLLEN_SHM_DIR=place + "/shm")
    command = [launcher, "/usr/bin/python3", tests + "/run_tests.py", "--dev", "mlx5_0", "-v"]
    run = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, timeout=600, check=False)

ran = re.search(r"^Ran (\d+) tests", run.stdout, re.M)
if ran is None:
    print(run.stdout[-4000:])
    print(f"the tests did not come to an end: {run.returncode}")
    sys.exit(1)
failed = set(re.findall(r"^(?:FAIL|ERROR): (\w+)", run.stdout, re.M))
skips = re.findall(r"skipped ['\"](.*)['\"]$", run.stdout, re.M)
passed = int(ran.group(1)) - len(skips) - len(failed)
print(f"ran {ran.group(1)}, passed {passed}, skipped by themselves {len(skips)}, failed {len(failed)}")
for reason in sorted(set(skips)):
    print(f"  skipped {skips.count(reason)}: {reason}")
for test in sorted(failed):
    print(f"  failed: {test}{' (expected)' if test in expected else ''}")
if failed - expected:
    print(run.stdout[-20000:])
sys.exit(0 if passed >= least and not failed - expected else 1)
