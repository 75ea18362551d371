"""The recovered metadata on its way from shard 0 to the other shards: a memfd, since a packet is small and a state
need not be."""

import os
import socket

import trio

from shardsrv.bus import handover
from shardsrv.errors import OurFault

NOTE = b"metadata"


async def send_state(link: socket.socket, payload: bytes) -> None:
    """Hand ``payload`` over."""
    fd = os.memfd_create("shardsrv-metadata", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(payload)
        while not handover.send_descriptors(link, NOTE, (fd,)):
            await trio.lowlevel.wait_writable(link)
    finally:
        os.close(fd)


async def receive_state(link: socket.socket) -> bytes:
    """The payload that shard 0 hands over; waits for it."""
    while True:
        packet = handover.receive_descriptors(link)
        if packet is None:
            await trio.lowlevel.wait_readable(link)
            continue
        note, descriptors = packet
        if note != NOTE or len(descriptors) != 1:
            raise OurFault(f"hand-over of {note!r} with {len(descriptors)} descriptors where the metadata was expected")
        with open(descriptors[0], "rb") as file:
            file.seek(0)
            return file.read()
