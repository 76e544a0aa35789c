"""`python -m course_utils.machine.doctor`: prints the report; exit code 0 when there is no problem."""

import argparse
import sys

argparse.ArgumentParser(
    prog="python -m course_utils.machine.doctor",
    description=(
        "Is this machine ready for the course, and if not, what cures it? Takes at most 20 s and changes nothing."
    ),
).parse_args()

from . import doctor  # noqa: E402  --help answers at once

report = doctor()
print(report)
sys.exit(0 if report.ok else 1)
