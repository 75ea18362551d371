"""`shardsrv verify DIR`: every seal and every chain of a data directory. Changes nothing.

The exit code is the heaviest finding: 0 clean, 1 torn (a start would cut it and lose nothing that was promised), 2
damaged, 3 not a data directory.
"""

from __future__ import annotations

import json
import sys
from typing import TextIO

from shardsrv.store.inspect import NOT_A_DATA_DIRECTORY, document
from shardsrv.store.survey import Surveyor, is_data_directory


def verify(path: str, as_json: bool, out: TextIO | None = None) -> int:
    """Check everything and print the findings. Returns the exit code."""
    out = out or sys.stdout
    if not is_data_directory(path):
        print(f"{path}: not a data directory", file=sys.stderr)
        return NOT_A_DATA_DIRECTORY
    survey = Surveyor(path, deep=True).run()
    weight = survey.weight
    if as_json:
        print(json.dumps({"verdict": weight.name.lower(), **document(survey)}, indent=2), file=out)
        return int(weight)
    if survey.lock_held:
        print("another process holds the lock: what it is writing now may look torn", file=out)
    for finding in survey.findings:
        print(f"{finding.weight.name.lower()}: {finding.path}: {finding.text}", file=out)
    partitions = survey.facts["partitions"]
    logs = [survey.facts["metadata"]["log"], *(partition["log"] for partition in partitions)]
    size = sum(log.get("bytes", 0) for log in logs)
    print(f"{weight.name.lower()}: {len(partitions)} partitions, {size} bytes of log checked", file=out)
    return int(weight)
