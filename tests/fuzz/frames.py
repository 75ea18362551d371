"""Frames for a living node: recorded requests, mutated, with the session of the connection they go out on.

Most frames are framed right and carry the right session, checksum and numbers, so that the layers behind are met; some
are not. Commands that would make the node slow by what they rightly do (a thousand partitions, an archive of its logs)
are rare.
"""

import struct

import xxhash

from tests.fuzz import corpus, seals
from tests.fuzz.mutation import Mutator
from tests.fuzz.wire_line import Volley
from tests.support.frames import COMMAND_REQUEST, CREATE_PARTITIONS, CREATE_TOPIC, HEADER_SIZE, SEND_MESSAGES

SLOW_OPERATIONS = (CREATE_TOPIC, CREATE_PARTITIONS)
SNAPSHOT_CODE = 11
RARE = 0.05
LARGE = 0.0005
"""Share of frames that get a large tail."""
LARGE_BYTES = 4 << 20
BREAKING = 0.1
"""Share of volleys that end with a broken frame."""
HONEST = 0.85
"""Share of frames with the right session and checksum."""
UNMUTATED = 0.15


class Frames:
    """A deterministic source of volleys."""

    def __init__(self, seed: int) -> None:
        self.mutator = Mutator(seed)
        self.samples = [one for one in corpus.recorded() if len(one.header) == HEADER_SIZE]
        self._request = 0

    def volley(self, length: int, client: bytes, session: int) -> Volley:
        """So many frames for one connection, perhaps with a broken one behind them."""
        frames = [self.frame(client, session) for _ in range(length)]
        breaking = self._breaking(client, session) if self._share(BREAKING) else b""
        return Volley(frames, breaking)

    def _share(self, part: float) -> bool:
        return self.mutator.dice.random() < part

    def frame(self, client: bytes, session: int) -> bytes:
        """One frame whose size field is its length and whose command is one of the protocol's."""
        mutator = self.mutator
        while True:
            sample = self.samples[mutator.below(len(self.samples))]
            slow = sample.operation in SLOW_OPERATIONS or sample.code == SNAPSHOT_CODE
            if not slow or self._share(RARE):
                break
        other = self.samples[mutator.below(len(self.samples))]
        body = bytearray(sample.body) if self._share(UNMUTATED) else mutator.mutate(sample.body, other.body)
        if sample.operation == SEND_MESSAGES and self._share(HONEST):
            seals.seal_send(body)
        if session and self._share(LARGE):
            body += bytes(mutator.below(LARGE_BYTES))
        header = bytearray(sample.header)
        if not self._share(HONEST):
            places = [
                (128, 16),
                (144, 8),
                (152, 8),
                (160, 8),
                (168, 8),
                (176, 1),
                (184, 8),
                (192, 4),
                (196, 4),
                (60, 1),
            ]
            header = mutator.mutate_fields(bytes(header), places)
            header[60] %= 30
        if self._share(HONEST):
            self._own(header, body, client, session)
        frame = header + body
        seals.seal_size(frame)
        return bytes(frame)

    def _own(self, header: bytearray, body: bytearray, client: bytes, session: int) -> None:
        """Make a header one of the connection's: its client, its session, the next number, the checksum of its body."""
        self._request += 1
        header[60] = COMMAND_REQUEST
        header[128:144] = client
        register = header[176] == 1
        struct.pack_into("<Q", header, 184, 0 if register else session)
        struct.pack_into("<Q", header, 168, 0 if register else self._request)
        struct.pack_into("<QQ", header, 144, xxhash.xxh3_64_intdigest(bytes(body)) if self._share(0.5) else 0, 0)

    def _breaking(self, client: bytes, session: int) -> bytes:
        """A frame after which the connection cannot go on: a wrong size or command, a part of a frame, or noise."""
        mutator = self.mutator
        frame = bytearray(self.frame(client, session))
        way = mutator.below(4)
        if way == 0:
            frame[48:52] = (mutator.below(HEADER_SIZE)).to_bytes(4, "little")
        elif way == 1:
            frame[60] = 30 + mutator.below(226)
        elif way == 2:
            del frame[mutator.below(len(frame) - 1) + 1 :]
        else:
            frame[48:52] = (0x40000000 + mutator.below(0x3FFFFFFF)).to_bytes(4, "little")
        return bytes(frame)
