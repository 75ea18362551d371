"""``python -m tests.wire.conduct HOST:PORT SOURCE``: replay one source against a server that just started empty."""

import argparse
import sys
from pathlib import Path

from tests.wire.conduct import deviations, recording
from tests.wire.conduct.replay import Replayer


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire.conduct", description=__doc__)
    parser.add_argument("address", help="HOST:PORT of the binary protocol; root is iggy/iggy, the data is empty")
    parser.add_argument("source", choices=recording.SINGLE_NODE_SOURCES)
    parser.add_argument("--recording", type=Path, default=recording.GOLDEN, help="file of exchanges")
    parser.add_argument("--exact", action="store_true", help="allow no deviation")
    parser.add_argument("--older-catalogue", action="store_true", help="leave out options that only newer servers know")
    chosen = parser.parse_args()
    host, _, port = chosen.address.rpartition(":")
    replayer = Replayer(
        host,
        int(port),
        recording.load(chosen.recording),
        deviations=[] if chosen.exact else deviations.load(),
        older_catalogue=chosen.older_catalogue,
    )
    report = replayer.run(chosen.source)
    for mismatch in report.mismatches:
        print(mismatch)
    print(f"{report.compared} exchanges compared, {len(report.mismatches)} differ; deviations: {report.deviations}")
    return 1 if report.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
