"""Hand-over of sockets and shared memory between processes of a node, over an AF_UNIX SOCK_SEQPACKET pair (SCM_RIGHTS).

Invariants: one packet is one note with its descriptors, whole or not at all; a descriptor that arrives belongs to the
receiver, the sender's own copy stays open and is closed by the sender; a packet that was cut short gives nothing, and
what came with it is closed.

What the note says is between the two ends: bytes, at most NOTE_MAX, never empty (an empty packet is how the end of the
link looks).
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Sequence
from typing import Final

from shardsrv.errors import OurFault

NOTE_MAX: Final = 8192
"""Bytes of a note: the state of one session fits, and a packet stays far below the socket's buffer."""
DESCRIPTORS_MAX: Final = 16
"""Descriptors of one packet; the kernel's own limit is 253."""
ITEM: Final = array.array("i").itemsize


def send_descriptors(link: socket.socket, note: bytes, descriptors: Sequence[int] = ()) -> bool:
    """Send a note and copies of descriptors. False when the link is full: nothing was sent, the caller keeps both.

    Raises:
        OurFault: a note or a number of descriptors outside the limits, or the other end is gone.
    """
    if not 0 < len(note) <= NOTE_MAX or len(descriptors) > DESCRIPTORS_MAX:
        raise OurFault(f"hand-over of {len(note)} bytes with {len(descriptors)} descriptors")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        link.sendmsg([note], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BlockingIOError:
        return False
    except (BrokenPipeError, ConnectionResetError) as error:
        raise OurFault("hand-over: the other process is gone") from error
    return True


def receive_descriptors(link: socket.socket) -> tuple[bytes, list[int]] | None:
    """(note, descriptors) of the next packet; None when none waits.

    Raises:
        OurFault: a packet was cut short (no descriptors left here, or a note too long), or the other end is gone.
    """
    try:
        # Not socket.recv_fds: it forgets its flags before Python 3.12, and would wait.
        note, ancillary, flags, _ = link.recvmsg(
            NOTE_MAX, socket.CMSG_SPACE(DESCRIPTORS_MAX * ITEM), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        return None
    except ConnectionResetError as error:
        raise OurFault("hand-over: the other process is gone") from error
    descriptors: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += array.array("i", data[: len(data) - len(data) % ITEM])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        raise OurFault("hand-over: packet cut short")
    if not note:
        raise OurFault("hand-over: the other process is gone")
    return note, descriptors
