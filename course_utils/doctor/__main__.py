"""`python -m course_utils.doctor`: prints the report; exit code 0 when there is no problem."""

import sys

from . import doctor

report = doctor()
print(report)
sys.exit(0 if report.ok else 1)
