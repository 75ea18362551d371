"""The copy of the metadata on a shard that owns partitions: moved on by entries, or replaced as a whole.

Shard 0 sends committed entries over a lane. In a cluster a state transfer may put a whole state in their place: it is
announced on the lane, between the entries, and comes as a memfd over another channel. Invariants: entries are applied
in op order, each once; what is behind an announced state waits until it is here; an entry that is in a state already is
skipped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from shardsrv._core import HEADER_SIZE, Prepare
from shardsrv.plane.metadata import snapshot
from shardsrv.plane.metadata.plane import MetadataPlane


class MetadataCopy:
    """``applied`` is called behind each entry, ``replaced`` behind each state."""

    def __init__(
        self, plane: MetadataPlane, *, applied: Callable[[Prepare], None], replaced: Callable[[], None]
    ) -> None:
        self._plane = plane
        self._applied = applied
        self._replaced = replaced
        self._announced = 0
        self._states: deque[bytes] = deque()
        self._held: deque[tuple[bytes, bytes]] = deque()

    def committed(self, head: memoryview, body: memoryview) -> None:
        """The next committed entry: a prepare header, with the client id that the client table gave up, and the
        body."""
        if self._announced:
            self._held.append((bytes(head), bytes(body)))
        else:
            self._apply(bytes(head), bytes(body))

    def announced(self, head: memoryview, body: memoryview) -> None:
        """A state takes the place of the entries up to here."""
        self._announced += 1
        self._take()

    def came(self, payload: bytes) -> None:
        """A state is here."""
        self._states.append(payload)
        self._take()

    def _take(self) -> None:
        while self._announced and self._states:
            self._announced -= 1
            self._plane.restore(snapshot.decode(self._states.popleft()))
            self._replaced()
        while self._held and not self._announced:
            self._apply(*self._held.popleft())

    def _apply(self, head: bytes, body: bytes) -> None:
        prepare = Prepare.load(head[:HEADER_SIZE] + body)
        if prepare.op <= self._plane.op:
            return
        self._plane.apply(prepare)
        if len(head) > HEADER_SIZE:
            self._plane.end_client(head[HEADER_SIZE:])
        self._applied(prepare)
