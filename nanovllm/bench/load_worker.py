"""The load generator's process: a plan a line on stdin, its records a line on stdout."""

import asyncio
import json
import sys
from dataclasses import asdict

from nanovllm.serve.load import LoadPlan, run_load


def main() -> int:
    """Until stdin ends."""
    for line in sys.stdin:
        job = json.loads(line)
        report = asyncio.run(run_load(job["url"], LoadPlan(**job["plan"])))
        told = {"records": [asdict(record) for record in report.records], "duration": report.duration}
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
