"""Worker processes hand in every output, whatever becomes of them on the way."""

import subprocess
import sys

GROWING = """
import builtins, time
import joblib
from fedbcgd_lite import workers

def grow(number):
    builtins.kept = [*getattr(builtins, "kept", []), b"1" * 400_000_000]  # joblib lets a worker grow by less
    time.sleep(1.1)  # it looks once a second
    return number

if __name__ == "__main__":
    with workers.in_parallel([joblib.delayed(grow)(number) for number in range(8)], 2) as outputs:
        print(sorted(outputs))
"""


def test_workers_that_are_replaced_because_they_grew_lose_no_output():
    """Also where warnings are errors, and without a word."""
    run = subprocess.run([sys.executable, "-W", "error", "-c", GROWING], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == (f"{[*range(8)]}\n", "")
