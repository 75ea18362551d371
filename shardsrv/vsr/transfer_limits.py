"""The numbers of a state transfer, with their reasons; ticks are the 10 ms of `Tick`.

Invariants: both sides size chunks by `chunk_payload_max`, so that a small frame limit makes chunks small and never
artifacts untransferable; the retry interval is at least one tick; the window of a receiver leaves room in the queue of
a link for consensus.
"""

from __future__ import annotations

from typing import Final

import attrs

from shardsrv.vsr.transfer_faults import TransferLimitInvalid
from shardsrv.wire.constants import HEADER_SIZE

CHUNK_MAX: Final = 256 * 1024
FRAME_MAX_DEFAULT: Final = 64 * 1024 * 1024
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB


def chunk_payload_max(frame_max: int) -> int:
    """The largest payload of a StateChunk on links that carry frames of up to ``frame_max`` bytes: 256 KiB or what is
    left beside the header, and never below 1, since a chunk without payload would be asked for again without end."""
    return max(1, min(CHUNK_MAX, frame_max - HEADER_SIZE))


@attrs.frozen
class TransferLimits:
    """Limits of one group.

    Args:
        frame_max: bytes of the largest frame that the links carry.
        retry_ticks: silence after which what is missing is asked for again.
        rounds_max: such rounds in a row before a receiver gives a peer up; the same number of fetches in a row that
            do not decode.
        idle_intervals, served_intervals: life of an offer without a served chunk, in retry intervals; the short one
            once every byte was sent. A lost last chunk is asked for after one interval, so one is too short.
        cooldown_intervals: how long a generation that was given up is not fetched again.
        window_chunks: chunks in flight; the bytes in flight are at most that many times the chunk size.
        reads_max: chunks of one requester that a server reads at the same time.
        artifact_max, manifest_max: bytes of one artifact and of all of them, from a peer's numbers.
    """

    frame_max: int = FRAME_MAX_DEFAULT
    retry_ticks: int = attrs.field(default=100, converter=lambda ticks: max(1, ticks))
    rounds_max: int = 5
    idle_intervals: int = 10
    served_intervals: int = 3
    cooldown_intervals: int = 30
    window_chunks: int = 8
    reads_max: int = 16
    artifact_max: int = GIB
    manifest_max: int = 4 * GIB

    @property
    def chunk_max(self) -> int:
        """Bytes of payload of one chunk."""
        return chunk_payload_max(self.frame_max)

    def check_queue(self, queue_frames: int) -> None:
        """Raises `TransferLimitInvalid` unless a window, and the answers to one, take at most half of a link's queue
        of ``queue_frames`` frames."""
        if not 1 <= self.window_chunks <= queue_frames // 2:
            raise TransferLimitInvalid("window_chunks", self.window_chunks, "peer_queue_capacity", queue_frames)


PARTITION_ARTIFACT_MAX: Final = 1088 * MIB
"""A segment of the largest size, soft by one batch."""
PARTITION_MANIFEST_MAX: Final = 1024 * GIB
