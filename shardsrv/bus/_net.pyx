# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The reactor: request frames in, from all sockets of one shard; replies out are the part of `_sockets`.

Synchronous, one thread. Invariants:

* `readable` remembers an edge until a read has emptied the socket; a connection that is not read (lockstep, no room,
  output not taken) costs no system call and no event;
* lockstep: while a frame of a connection is with the handler (`waiting`), no further frame of it is delivered; a
  reactor made without it (links between nodes) delivers up to `BURST` of each connection in one poll;
* handlers are called last, with everything in order: one that raises leaves its frame delivered and the rest queued.

How bytes are received. Sockets share a *turn chunk*; what arrives is read at its cursor, and a complete frame is
delivered where it lies (its start is at a multiple of 64 unless it was pipelined behind another). A frame that is not
complete moves: a part of a header into the connection's own 256 bytes, more into a buffer of exactly its size, and the
rest is received straight into that. An idle connection therefore holds no buffer, and the body of a large frame is
copied for its first 64 KiB at most: a connection whose last frame was large is first read for its header alone. When
the arena or the ingress budget has no room the socket is not read until room has come back (`parked`).

Source of the frame rules: the client protocol, transport framing (size field u32 at 48, command byte at 60).
"""

from typing import Protocol

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.ref cimport Py_INCREF, PyObject
from libc.errno cimport EAGAIN, EINTR, ENOSYS, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy
from posix.time cimport timespec
from posix.unistd cimport read

from shardsrv.bus._arena cimport Buffer
from shardsrv.bus._frame cimport load_u32, new_frame
from shardsrv.bus._sockets cimport *
from shardsrv.bus._sys cimport *

from shardsrv.bus import _frame
from shardsrv.errors import OurFault

# The name Frame is a Python type for those who import it from here.
globals().update(Frame=_frame.Frame)

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* thing)

CLOSED_BY_PEER = 1
CLOSED_BY_RESET = 2
CLOSED_BAD_SIZE = 3
CLOSED_BAD_COMMAND = 4
CLOSED_BY_US = 5
CLOSED_OVER_BUDGET = 6

cdef enum:
    HEADER = 256
    COMMAND_MAX = 29
    TURN_CHUNK = 256 << 10     # small enough that one frame kept for long does not hold much beside itself
    RECEIVE = 64 << 10         # at most this is read at the cursor, and so copied when it is the start of a large frame
    TURN_BYTES = 1 << 20       # of one connection in a row: about 200 us, then the others have their turn
    UNLOCK_BYTES = 64 << 10    # copies by the kernel from this size on run without the interpreter lock
    EVENTS = 256               # of one epoll_wait
    BURST = 64                 # frames of one connection in one poll, without lockstep

cdef uint64_t WATCH = <uint64_t>1 << 63
"""Bit of the epoll data that tells a watched descriptor from a connection; generations stay below 2^31."""


class Handler(Protocol):
    """What the reactor calls, from `poll` only."""

    def on_frame(self, frame):
        """A complete frame; answer it with `reply`, `resume` or `close`, now or later."""

    def on_close(self, connection, reason):
        """The connection is gone, for one of the CLOSED_ reasons."""

    def on_wake(self, key):
        """A watched descriptor is readable; an eventfd has been read already."""


cdef inline void acknowledge_now(int fd) noexcept nogil:
    """Send a delayed acknowledgement at once: a client with Nagle on holds the body back until its header is
    acknowledged.
    """
    cdef int on = 1
    setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on))


@cython.final
@cython.no_gc_clear
cdef class Reactor(Sockets):
    """See `_net.pyi` for the meaning of each method, and `Sockets` for the arguments."""

    def __cinit__(self, *_, **__):
        self.woken = []
        self.watches = {}
        self.precise = True
        self.events = <epoll_event*>malloc(EVENTS * sizeof(epoll_event))
        if self.events == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.events)

    def shutdown(self):
        """Idempotent. Handlers hear nothing of it."""
        self.close_all()
        self.closed.clear()
        self.woken.clear()
        self.watches.clear()
        self.chunk = None

    # --- watched descriptors -----------------------------------------------------------------------------------------

    def watch(self, int fd, key, bint is_eventfd=True):
        cdef epoll_event event
        token = self.next_watch
        event.events = EPOLLIN
        event.data.u64 = WATCH | self.next_watch
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0:
            raise failure("epoll_ctl")
        self.next_watch += 1
        self.watches[token] = (fd, key, is_eventfd)

    def unwatch(self, int fd):
        for token, watched in self.watches.items():
            if watched[0] == fd:
                epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, fd, NULL)
                del self.watches[token]
                return
        raise OurFault(f"descriptor {fd} is not watched")

    # --- poll --------------------------------------------------------------------------------------------------------

    cdef void park(self, Connection* peer) noexcept:
        if peer.parked:
            return
        if self.parked.count == 0:
            self.seen_releases = self.ingress.releases
            self.seen_frees = self.arena.frees
        peer.parked = True
        self.parkings += 1
        fifo_push(&self.parked, <uint32_t>(peer - self.table))

    cdef bint room_returned(self) noexcept:
        return self.parked.count > 0 and (
            self.seen_releases != self.ingress.releases or self.seen_frees != self.arena.frees
        )

    cdef void unpark(self) noexcept:
        cdef Connection* peer
        self.seen_releases = self.ingress.releases
        self.seen_frees = self.arena.frees
        while self.parked.count > 0:
            peer = self.table + fifo_pop(&self.parked)
            peer.parked = False
            if peer.fd >= 0:
                self.push_ready(peer)

    def has_backlog(self):
        return bool(self.ready.count > 0 or self.closed or self.woken or self.room_returned())

    def poll(self, long timeout_us, handler):
        cdef int count
        cdef int index
        cdef uint32_t turns
        cdef uint32_t slot
        if self.epoll_fd < 0 or self.polling:
            raise OurFault("poll after shutdown" if self.epoll_fd < 0 else "poll inside poll")
        self.polling = True
        try:
            if self.room_returned():
                self.unpark()
            if self.ready.count > 0 or self.closed or self.woken:
                timeout_us = 0
            count = self.wait(timeout_us)
            for index in range(count):
                self.note(self.events + index)
            while self.woken:
                watched = self.watches.get(self.woken.pop(0))
                if watched is not None:
                    handler.on_wake(watched[1])
            if self.ready.count > 0:
                on_frame = handler.on_frame
                # Those that become ready meanwhile have their turn at the next poll.
                turns = self.ready.count if self.lockstep else self.ready.count * BURST
                while turns > 0 and self.ready.count > 0:
                    turns -= 1
                    slot = fifo_pop(&self.ready)
                    self.table[slot].queued = False
                    self.service(self.table + slot, on_frame)
            while self.closed:
                connection, reason = self.closed.pop(0)
                handler.on_close(connection, reason)
            return count
        finally:
            self.polling = False

    cdef int wait(self, long timeout_us) except -1:
        cdef int count
        cdef int timeout_ms
        cdef timespec limit
        if timeout_us == 0:
            count = epoll_wait(self.epoll_fd, self.events, EVENTS, 0)
        elif self.precise:
            limit.tv_sec = timeout_us // 1000000
            limit.tv_nsec = timeout_us % 1000000 * 1000
            with nogil:
                count = wait_precisely(self.epoll_fd, self.events, EVENTS, NULL if timeout_us < 0 else &limit)
            if count < 0 and errno == ENOSYS:
                self.precise = False
                return self.wait(timeout_us)
        else:
            timeout_ms = -1 if timeout_us < 0 else <int>((timeout_us + 999) // 1000)
            with nogil:
                count = epoll_wait(self.epoll_fd, self.events, EVENTS, timeout_ms)
        if count < 0:
            if errno != EINTR:
                raise failure("epoll_wait")
            PyErr_CheckSignals()
            return 0
        return count

    cdef int note(self, epoll_event* event) except -1:
        """Remember what an event says. No handler is called here, so that no edge is lost when one raises."""
        cdef Connection* peer
        cdef uint64_t value
        cdef uint32_t events = event.events
        if event.data.u64 & WATCH:
            token = event.data.u64 & ~WATCH
            watched = self.watches.get(token)
            if watched is not None:
                if watched[2]:
                    read(<int>watched[0], &value, 8)
                self.woken.append(token)
            return 0
        peer = self.find(event.data.u64)
        if peer == NULL:
            return 0
        if events & EPOLLOUT and peer.blocked:
            self.write_out(peer)
            if self.find(event.data.u64) == NULL:
                return 0
        if events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            peer.readable = True
            if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                peer.ending = True
            if events & (EPOLLHUP | EPOLLERR) and (peer.waiting or self.stalled(peer) or self.stopped):
                # Both directions are gone: an answer would have no reader.
                self.drop(peer, BY_RESET if events & EPOLLERR else BY_PEER)
            elif self.has_more(peer):
                self.push_ready(peer)
        return 0

    # --- receiving ---------------------------------------------------------------------------------------------------

    cdef int service(self, Connection* peer, object on_frame) except -1:
        """Deliver at most one frame of a connection."""
        if peer.fd < 0 or peer.waiting or self.stalled(peer) or peer.closing or self.stopped:
            return 0
        if peer.need == 0 and peer.have > 0:
            return self.take(peer, peer.data, peer.have, on_frame)
        if not peer.readable:
            return 0
        if peer.need:
            return self.receive_own(peer, on_frame)
        return self.receive_shared(peer, on_frame)

    cdef int receive_own(self, Connection* peer, object on_frame) except -1:
        """Receive the rest of a frame into its own buffer."""
        cdef int fd = peer.fd
        cdef size_t turn = 0
        cdef size_t wanted
        cdef ssize_t got
        cdef uint8_t* place
        cdef size_t size
        while turn < TURN_BYTES:
            place = peer.data + peer.have
            wanted = peer.need - peer.have
            if wanted >= UNLOCK_BYTES:
                with nogil:
                    got = recv(fd, place, wanted, MSG_DONTWAIT)
            else:
                got = recv(fd, place, wanted, MSG_DONTWAIT)
            if got <= 0:
                if turn and peer.tcp:
                    acknowledge_now(fd)
                return self.ended(peer, got, errno)
            self.bytes_received += got
            peer.have += got
            turn += got
            if peer.have == peer.need:
                size = peer.need
                owner = <Buffer>peer.buffer
                place = peer.data
                # The charge goes over to the frame.
                peer.charged = 0
                self.let_go(peer)
                return self.deliver(peer, owner, place, size, on_frame)
            if <size_t>got < wanted and peer.tcp and not peer.ending:
                peer.readable = False
                acknowledge_now(fd)
                return 0
        if peer.tcp:
            acknowledge_now(fd)
        self.push_ready(peer)
        return 0

    cdef int receive_shared(self, Connection* peer, object on_frame) except -1:
        """Receive what is there into the turn chunk, behind the part of a header that came before."""
        cdef uint8_t* place
        cdef ssize_t got
        cdef size_t have = peer.stashed
        cdef size_t limit = HEADER if peer.large else RECEIVE
        if self.ingress.bytes >= self.ingress.limit:
            self.park(peer)
            return 0
        if self.chunk is not None and Py_REFCNT(<PyObject*>self.chunk) == 1:
            # Nobody looks at it any more: start over in memory that is still warm.
            self.cursor = 0
        elif self.chunk is None or self.cursor + RECEIVE > TURN_CHUNK:
            self.chunk = None
            self.chunk = self.arena.allocate_c(TURN_CHUNK)
            self.cursor = 0
            if self.chunk is None:
                self.park(peer)
                return 0
        place = self.chunk.address + self.cursor
        if have:
            memcpy(place, peer.stash, have)
        got = recv(peer.fd, place + have, limit - have, MSG_DONTWAIT)
        if got <= 0:
            return self.ended(peer, got, errno)
        self.bytes_received += got
        if <size_t>got < limit - have and peer.tcp and not peer.ending:
            peer.readable = False
        peer.stashed = 0
        return self.take(peer, place, have + got, on_frame)

    cdef int take(self, Connection* peer, uint8_t* data, size_t have, object on_frame) except -1:
        """Bytes at the start of a frame, in a turn chunk: deliver the frame, or keep them until the rest comes."""
        cdef size_t size = 0
        cdef Buffer owner = <Buffer>peer.buffer if peer.buffer != NULL else self.chunk
        if have >= 52:
            size = load_u32(data + 48)
            if size < HEADER or size > self.frame_size_max:
                return self.drop(peer, BAD_SIZE)
            if not peer.authenticated and size > self.unauthenticated_bytes_max:
                return self.drop(peer, OVER_BUDGET)
            if have > 60 and data[60] > COMMAND_MAX:
                return self.drop(peer, BAD_COMMAND)
        if size == 0 or have < size:
            return self.take_part(peer, owner, data, have, size, on_frame)
        self.let_go(peer)
        self.ingress.charge(size)
        if have > size:
            self.keep(peer, owner, data + size, have - size)
        if owner is self.chunk:
            self.advance(data + have)
        return self.deliver(peer, owner, data, size, on_frame)

    cdef int take_part(
        self, Connection* peer, Buffer owner, uint8_t* data, size_t have, size_t size, object on_frame
    ) except -1:
        """Move an incomplete frame out of the turn chunk; where there is no room for it, keep it there and park."""
        cdef Buffer own = None
        if have < HEADER:
            # Stash first: letting go of the chunk may free it.
            memcpy(peer.stash, data, have)
            self.let_go(peer)
            peer.stashed = <uint32_t>have
        else:
            self.ingress.bytes -= peer.charged
            peer.charged = 0
            if self.ingress.bytes + size <= self.ingress.limit:
                own = self.arena.allocate_c(size)
            if own is None:
                if peer.buffer == NULL:
                    self.keep(peer, owner, data, have)
                    self.advance(data + have)
                else:
                    peer.charged = have
                    self.ingress.charge(have)
                self.park(peer)
                return 0
            memcpy(own.address, data, have)
            self.let_go(peer)
            self.keep(peer, own, own.address, have)
            peer.need = size
            self.ingress.charge(size - have)
            peer.charged = size
            if peer.readable:
                return self.receive_own(peer, on_frame)
        if peer.tcp:
            acknowledge_now(peer.fd)
        if peer.readable:
            self.push_ready(peer)
        return 0

    cdef void keep(self, Connection* peer, Buffer owner, uint8_t* data, size_t have) noexcept:
        """Let a connection hold bytes of a buffer, and charge it for them."""
        Py_INCREF(owner)
        peer.buffer = <PyObject*>owner
        peer.data = data
        peer.have = have
        peer.charged = have
        self.ingress.charge(have)

    cdef void advance(self, uint8_t* end) noexcept:
        """Move the cursor of the turn chunk behind `end`, unless it is there already."""
        cdef size_t cursor = (<size_t>(end - self.chunk.address) + 63) & ~<size_t>63
        if cursor > self.cursor:
            self.cursor = cursor

    cdef int deliver(self, Connection* peer, Buffer owner, uint8_t* data, size_t size, object on_frame) except -1:
        self.frames_received += 1
        peer.waiting = self.lockstep
        peer.large = size > RECEIVE
        if not self.lockstep and self.has_more(peer):
            self.push_ready(peer)
        on_frame(new_frame(self.ingress, owner, data, size, self.id_of(peer)))
        return 0

    cdef int ended(self, Connection* peer, ssize_t result, int error) except -1:
        """A read that gave nothing."""
        if result < 0 and error == EAGAIN:
            peer.readable = False
            return 0
        if result < 0 and error == EINTR:
            self.push_ready(peer)
            return 0
        if result == 0 and peer.output.count and self.lockstep:
            # Half closed: what was answered still goes out.
            peer.readable = False
            peer.closing = BY_PEER
            return 0
        return self.drop(peer, BY_PEER if result == 0 else BY_RESET)
