"""What shard 0 hands to the other shards beside client sockets: the metadata, in a memfd since a packet is small and a
state need not be, and sockets of links to other nodes.

The note of a packet says which: ``metadata <op>``, up to which every partition had its directory on this node; ``link
<replica id>``; any other note is the address of a client.
"""

import os
import socket

import trio

from shardsrv.bus import handover
from shardsrv.errors import OurFault

NOTE = b"metadata "
LINK = b"link "


def link_note(peer: int) -> bytes:
    """The note of a link's socket."""
    return LINK + str(peer).encode()


def link_of(note: bytes) -> int | None:
    """The replica id in the note of a link's socket; None for another note."""
    return int(note[len(LINK) :]) if note.startswith(LINK) else None


async def send_state(link: socket.socket, payload: bytes, reconciled_through: int) -> None:
    """Hand ``payload`` over."""
    fd = os.memfd_create("shardsrv-metadata", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(payload)
        while not handover.send_descriptors(link, NOTE + str(reconciled_through).encode(), (fd,)):
            await trio.lowlevel.wait_writable(link)
    finally:
        os.close(fd)


async def receive_state(link: socket.socket) -> tuple[bytes, int]:
    """(payload, op up to which partitions had their directories) that shard 0 hands over; waits for it."""
    while True:
        packet = handover.receive_descriptors(link)
        if packet is None:
            await trio.lowlevel.wait_readable(link)
            continue
        note, descriptors = packet
        if not is_state(note) or len(descriptors) != 1:
            raise OurFault(f"hand-over of {note!r} with {len(descriptors)} descriptors where the metadata was expected")
        return read_state(descriptors[0]), int(note[len(NOTE) :])


def is_state(note: bytes) -> bool:
    """Whether a packet holds the metadata."""
    return note.startswith(NOTE)


def read_state(descriptor: int) -> bytes:
    """The payload in a memfd, which is closed."""
    with open(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
