# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The reactor: client sockets of one shard, request frames in, replies out.

Owns the sockets, one epoll set, and the arena buffers that bytes are received into. Synchronous, one thread. Invariants:

* sockets are registered once, edge-triggered; `readable` remembers an edge until a read has emptied the socket. So a connection that
  is not read (lockstep, no room, output not taken) costs no system call and no event;
* lockstep: while a frame of a connection is with the handler (`waiting`), and while its output is not taken by the kernel
  (`blocked`), no further frame of it is delivered;
* every slot is at most once in each of the three queues (ready, dirty, parked); an entry outlives its connection harmlessly;
* handlers are called last, with everything in order: one that raises leaves its frame delivered and the rest queued;
* each connection is reported closed exactly once, from `poll`; an id (slot | generation << 32) is never used twice.

How bytes are received. Sockets share a *turn chunk*; what arrives is read at its cursor, and a complete frame is delivered where it
lies (its start is at a multiple of 64 unless it was pipelined behind another). A frame that is not complete moves: a part of a header
into the connection's own 256 bytes, more into a buffer of exactly its size, and the rest is received straight into that. An idle
connection therefore holds no buffer, and the body of a large frame is copied for its first 64 KiB at most. When the arena or the
ingress budget has no room the socket is not read until room has come back (`parked`).

Source of the frame rules: the client protocol, transport framing (size field u32 at 48, command byte at 60).
"""

import os
from typing import Protocol

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.errno cimport EAGAIN, EINTR, ENOSYS, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from posix.fcntl cimport F_GETFL, F_SETFL, O_NONBLOCK, fcntl
from posix.time cimport timespec
from posix.unistd cimport close as close_fd, read

from shardsrv.bus._arena cimport Arena, Buffer, forks
from shardsrv.bus._frame cimport Frame, Ingress, load_u32, new_frame
from shardsrv.bus._output cimport output_clear, output_cut, output_push, output_vector, output_written
from shardsrv.bus._sys cimport *

from shardsrv.bus import _frame
from shardsrv.errors import ConfigurationError, NotAccepted, OurFault

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
    BY_PEER = 1
    BY_RESET = 2
    BAD_SIZE = 3
    BAD_COMMAND = 4
    BY_US = 5
    OVER_BUDGET = 6

cdef enum:
    HEADER = 256
    COMMAND_MAX = 29
    TURN_CHUNK = 256 << 10     # small enough that one frame kept for long does not hold much beside itself
    RECEIVE = 64 << 10         # at most this is read at the cursor, and so copied when it is the start of a large frame
    TURN_BYTES = 1 << 20       # of one connection in a row: about 200 us, then the others have their turn
    UNLOCK_BYTES = 64 << 10    # copies by the kernel from this size on run without the interpreter lock
    EVENTS = 256               # of one epoll_wait
    VECTOR = 1024              # IOV_MAX of Linux
    DISCARD_TURNS = 16         # of 4 KiB
    NO_SLOT = 0xFFFFFFFF

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

# --- queues of slots ---------------------------------------------------------------------------------------------------

cdef int fifo_make(Fifo* queue, uint32_t capacity) except -1:
    queue.slots = <uint32_t*>malloc(capacity * sizeof(uint32_t))
    if queue.slots == NULL:
        raise MemoryError
    queue.capacity = capacity
    return 0


cdef inline void fifo_push(Fifo* queue, uint32_t slot) noexcept:
    cdef uint32_t place = queue.head + queue.count
    if place >= queue.capacity:
        place -= queue.capacity
    queue.slots[place] = slot
    queue.count += 1


cdef inline uint32_t fifo_pop(Fifo* queue) noexcept:
    cdef uint32_t slot = queue.slots[queue.head]
    queue.head = queue.head + 1 if queue.head + 1 < queue.capacity else 0
    queue.count -= 1
    return slot

# --- sockets -----------------------------------------------------------------------------------------------------------

cdef inline void acknowledge_now(int fd) noexcept nogil:
    """Send a delayed acknowledgement at once: a client with Nagle on holds the body back until its header is acknowledged."""
    cdef int on = 1
    setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on))


cdef object failure(str what):
    return OSError(errno, os.strerror(errno), what)


cdef str peer_address(int fd):
    """``ip:port``, ``[ip]:port`` for IPv6, ``unix`` for a local socket."""
    cdef sockaddr_storage address
    cdef socklen_t length = sizeof(address)
    cdef char text[64]
    if getpeername(fd, <sockaddr*>&address, &length) != 0:
        raise failure("getpeername")
    if address.ss_family == AF_INET:
        inet_ntop(AF_INET, &(<sockaddr_in*>&address).sin_addr, text, sizeof(text))
        return f"{(<bytes>text).decode()}:{ntohs((<sockaddr_in*>&address).sin_port)}"
    if address.ss_family == AF_INET6:
        inet_ntop(AF_INET6, &(<sockaddr_in6*>&address).sin6_addr, text, sizeof(text))
        return f"[{(<bytes>text).decode()}]:{ntohs((<sockaddr_in6*>&address).sin6_port)}"
    return "unix"


@cython.final
@cython.no_gc_clear
cdef class Reactor:
    """See `_net.pyi` for the meaning of each method.

    Args:
        arena: owned by this process; at least a turn chunk and the largest frame must fit.
        frame_size_max: largest size field, bytes; beyond it the connection ends.
        connections_max: beyond it `adopt` refuses.
        unauthenticated_bytes_max: largest frame of a connection before `set_authenticated`.
        ingress_bytes_max: bytes received and not yet dropped; beyond it sockets are not read.
    Raises:
        ConfigurationError: a limit that cannot work.
    """

    def __cinit__(
        self, Arena arena not None, *, size_t frame_size_max, uint32_t connections_max, size_t unauthenticated_bytes_max,
        size_t ingress_bytes_max,
    ):
        self.epoll_fd = -1
        self.generation = forks()
        if not HEADER <= frame_size_max <= 128 << 20:
            raise ConfigurationError("frame_size_max", frame_size_max, "want 256 bytes to 128 MiB")
        if ingress_bytes_max < frame_size_max:
            raise ConfigurationError("ingress_bytes_max", ingress_bytes_max, "the largest frame would never fit")
        if not 1 <= connections_max <= 1 << 24:
            raise ConfigurationError("connections_max", connections_max, "want 1 to 16,777,216")
        self.arena = arena
        self.ingress = Ingress(ingress_bytes_max)
        self.frame_size_max = frame_size_max
        self.unauthenticated_bytes_max = unauthenticated_bytes_max
        self.connections_max = connections_max
        self.free_head = NO_SLOT
        self.closed = []
        self.woken = []
        self.watches = {}
        self.precise = True
        self.table = <Connection*>calloc(connections_max, sizeof(Connection))
        self.events = <epoll_event*>malloc(EVENTS * sizeof(epoll_event))
        self.vector = <iovec*>malloc(VECTOR * sizeof(iovec))
        if self.table == NULL or self.events == NULL or self.vector == NULL:
            raise MemoryError
        fifo_make(&self.ready, connections_max)
        fifo_make(&self.dirty, connections_max)
        fifo_make(&self.parked, connections_max)
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise failure("epoll_create1")

    def __dealloc__(self):
        # A forked child shares the epoll set itself: taking sockets out of it there would take them from the parent.
        if self.generation == forks() and self.epoll_fd >= 0:
            self.shutdown()
        free(self.table)
        free(self.events)
        free(self.vector)
        free(self.ready.slots)
        free(self.dirty.slots)
        free(self.parked.slots)

    @property
    def ingress_bytes(self):
        return self.ingress.bytes

    # --- connections ---------------------------------------------------------------------------------------------------

    cdef Connection* find(self, uint64_t connection) noexcept:
        cdef uint32_t slot = <uint32_t>(connection & 0xFFFFFFFF)
        if slot >= self.table_used:
            return NULL
        if self.table[slot].fd < 0 or self.table[slot].generation != <uint32_t>(connection >> 32):
            return NULL
        return self.table + slot

    cdef uint64_t id_of(self, Connection* peer) noexcept:
        return <uint64_t>(peer - self.table) | <uint64_t>peer.generation << 32

    def adopt(self, int fd):
        """Take over a connected socket. On an exception the descriptor still belongs to the caller."""
        cdef Connection* peer
        cdef epoll_event event
        cdef uint32_t slot
        cdef int domain = 0
        cdef int on = 1
        cdef socklen_t length = sizeof(domain)
        if self.epoll_fd < 0:
            raise OurFault("adopt after shutdown")
        if self.connections >= self.connections_max:
            raise NotAccepted(f"connections_max {self.connections_max}")
        if getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0:
            raise failure("SO_DOMAIN")
        address = peer_address(fd)
        cdef int flags = fcntl(fd, F_GETFL, 0)
        if flags < 0 or fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0:
            raise failure("O_NONBLOCK")
        cdef bint tcp = domain == AF_INET or domain == AF_INET6
        if tcp and setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0:
            raise failure("TCP_NODELAY")
        slot = self.free_head if self.free_head != NO_SLOT else self.table_used
        peer = self.table + slot
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET
        event.data.u64 = <uint64_t>slot | <uint64_t>(peer.generation or 1) << 32
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0:
            raise failure("epoll_ctl")
        if slot == self.free_head:
            self.free_head = peer.next_free
        else:
            self.table_used += 1
        peer.generation = peer.generation or 1
        peer.fd = fd
        peer.tcp = tcp
        Py_INCREF(address)
        peer.address = <PyObject*>address
        self.connections += 1
        return self.id_of(peer)

    cdef void let_go(self, Connection* peer) noexcept:
        """Drop the bytes that were received and not delivered."""
        cdef PyObject* buffer = peer.buffer
        if peer.charged:
            self.ingress.release(peer.charged)
        peer.buffer = NULL
        peer.data = NULL
        peer.have = 0
        peer.need = 0
        peer.charged = 0
        peer.stashed = 0
        Py_XDECREF(buffer)

    cdef int drop(self, Connection* peer, int reason) except -1:
        """End a connection: out of the epoll set before the descriptor is closed, because a copy of it may live on elsewhere."""
        cdef PyObject* address = peer.address
        cdef int fd = peer.fd
        if self.epoll_fd >= 0:
            epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, fd, NULL)
        close_fd(fd)
        if reason:
            self.closed.append((self.id_of(peer), reason))
        self.release_slot(peer)
        Py_XDECREF(address)
        return 0

    cdef void release_slot(self, Connection* peer) noexcept:
        peer.fd = -1
        peer.generation = (peer.generation + 1) & 0x7FFFFFFF or 1
        peer.address = NULL
        peer.tcp = peer.authenticated = peer.waiting = peer.readable = peer.ending = peer.blocked = False
        peer.closing = 0
        peer.next_free = self.free_head
        self.free_head = <uint32_t>(peer - self.table)
        self.connections -= 1
        self.let_go(peer)
        output_clear(&peer.output)

    def detach(self, uint64_t connection):
        """Give up a connection that has nothing in flight, without closing it. Its descriptor, or None when it is not idle."""
        cdef Connection* peer = self.find(connection)
        if peer == NULL or peer.waiting or peer.have or peer.stashed or peer.output.count or peer.closing:
            return None
        cdef int fd = peer.fd
        cdef PyObject* address = peer.address
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, fd, NULL) != 0:
            raise failure("epoll_ctl")
        self.release_slot(peer)
        Py_XDECREF(address)
        return fd

    def close(self, uint64_t connection, bint after_flush=False):
        """End a connection, at once or when its queued output is written. Unknown ids are ignored: it may just have gone."""
        cdef Connection* peer = self.find(connection)
        if peer == NULL:
            return
        if after_flush and peer.output.count:
            peer.closing = BY_US
            self.push_dirty(peer)
        else:
            self.drop(peer, BY_US)

    def set_authenticated(self, uint64_t connection, bint value):
        cdef Connection* peer = self.find(connection)
        if peer != NULL:
            peer.authenticated = value

    def address(self, uint64_t connection):
        cdef Connection* peer = self.find(connection)
        return "" if peer == NULL else <str>peer.address

    def connection_ids(self):
        cdef uint32_t slot
        return [self.id_of(self.table + slot) for slot in range(self.table_used) if self.table[slot].fd >= 0]

    def stop_receiving(self):
        self.stopped = True

    def shutdown(self):
        """Idempotent. Handlers hear nothing of it."""
        cdef uint32_t slot
        for slot in range(self.table_used):
            if self.table[slot].fd >= 0:
                self.drop(self.table + slot, 0)
        self.closed.clear()
        self.woken.clear()
        self.watches.clear()
        self.chunk = None
        if self.epoll_fd >= 0:
            close_fd(self.epoll_fd)
            self.epoll_fd = -1

    # --- watched descriptors -------------------------------------------------------------------------------------------

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

    # --- poll ----------------------------------------------------------------------------------------------------------

    cdef void push_ready(self, Connection* peer) noexcept:
        if not peer.queued:
            peer.queued = True
            fifo_push(&self.ready, <uint32_t>(peer - self.table))

    cdef void push_dirty(self, Connection* peer) noexcept:
        if not peer.dirty:
            peer.dirty = True
            fifo_push(&self.dirty, <uint32_t>(peer - self.table))

    cdef bint has_more(self, Connection* peer) noexcept:
        """Whether a frame of it may be had without any further event."""
        return not (peer.waiting or peer.blocked or self.stopped) and (peer.readable or peer.have > peer.need)

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
                turns = self.ready.count
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
            with nogil:
                count = epoll_wait(self.epoll_fd, self.events, EVENTS, -1 if timeout_us < 0 else <int>((timeout_us + 999) // 1000))
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
            if events & (EPOLLHUP | EPOLLERR) and (peer.waiting or peer.blocked or self.stopped):
                # Both directions are gone: an answer would have no reader.
                self.drop(peer, BY_RESET if events & EPOLLERR else BY_PEER)
            elif self.has_more(peer):
                self.push_ready(peer)
        return 0

    # --- receiving -----------------------------------------------------------------------------------------------------

    cdef int service(self, Connection* peer, object on_frame) except -1:
        """Deliver at most one frame of a connection."""
        if peer.fd < 0 or peer.waiting or peer.blocked or peer.closing or self.stopped:
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
        got = recv(peer.fd, place + have, RECEIVE - have, MSG_DONTWAIT)
        if got <= 0:
            return self.ended(peer, got, errno)
        self.bytes_received += got
        if <size_t>got < RECEIVE - have and peer.tcp and not peer.ending:
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
        peer.waiting = True
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
        if result == 0 and peer.output.count:
            # Half closed: what was answered still goes out.
            peer.readable = False
            peer.closing = BY_PEER
            return 0
        return self.drop(peer, BY_PEER if result == 0 else BY_RESET)

    # --- replies -------------------------------------------------------------------------------------------------------

    cdef int append(self, Connection* peer, object part) except -1:
        cdef Py_buffer* view
        cdef uint8_t* data
        cdef size_t length
        if PyBytes_CheckExact(part):
            data = <uint8_t*>PyBytes_AS_STRING(part)
            length = <size_t>PyBytes_GET_SIZE(part)
        elif type(part) is Buffer:
            data = (<Buffer>part).address
            length = (<Buffer>part).size
        else:
            part = PyMemoryView_FromObject(part)
            view = PyMemoryView_GET_BUFFER(part)
            if not PyBuffer_IsContiguous(view, b"C"):
                raise OurFault("part of a reply is not contiguous")
            data = <uint8_t*>view.buf
            length = <size_t>view.len
        if length == 0:
            return 0
        Py_INCREF(part)
        if not output_push(&peer.output, <PyObject*>part, data, length):
            Py_XDECREF(<PyObject*>part)
            raise MemoryError
        return 1

    cdef int answered(self, Connection* peer) except -1:
        peer.waiting = False
        if peer.output.count and not peer.blocked:
            self.push_dirty(peer)
        if self.has_more(peer):
            self.push_ready(peer)
        return 0

    def reply_one(self, uint64_t connection, bytes frame not None):
        cdef Connection* peer = self.find(connection)
        if peer == NULL or peer.closing:
            return False
        self.append(peer, frame)
        self.answered(peer)
        return True

    def reply(self, uint64_t connection, parts):
        cdef Connection* peer = self.find(connection)
        cdef uint32_t queued = 0
        if peer == NULL or peer.closing:
            return False
        try:
            for part in parts:
                queued += self.append(peer, part)
        except BaseException:
            output_cut(&peer.output, queued)
            raise
        self.answered(peer)
        return True

    def resume(self, uint64_t connection):
        cdef Connection* peer = self.find(connection)
        if peer != NULL:
            self.answered(peer)

    def flush(self):
        cdef uint64_t before = self.bytes_sent
        cdef uint32_t turns = self.dirty.count
        cdef Connection* peer
        while turns > 0:
            turns -= 1
            peer = self.table + fifo_pop(&self.dirty)
            peer.dirty = False
            if peer.fd >= 0 and not peer.blocked:
                self.write_out(peer)
        return self.bytes_sent - before

    cdef int write_out(self, Connection* peer) except -1:
        """Write until the queue is empty or the kernel takes no more."""
        cdef msghdr message
        cdef ssize_t sent
        cdef uint32_t generation = peer.generation
        memset(&message, 0, sizeof(message))
        message.msg_iov = self.vector
        while peer.output.count:
            message.msg_iovlen = output_vector(&peer.output, self.vector, VECTOR)
            if peer.output.bytes >= UNLOCK_BYTES:
                with nogil:
                    sent = sendmsg(peer.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            elif message.msg_iovlen == 1:
                sent = send(peer.fd, self.vector[0].iov_base, self.vector[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT)
            else:
                sent = sendmsg(peer.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    peer.blocked = True
                    return 0
                return self.drop(peer, BY_RESET)
            self.bytes_sent += sent
            output_written(&peer.output, <size_t>sent)
            if peer.generation != generation:
                return 0
        peer.blocked = False
        if peer.closing:
            self.discard_input(peer)
            return self.drop(peer, <int>peer.closing)
        if self.has_more(peer):
            self.push_ready(peer)
        return 0

    cdef void discard_input(self, Connection* peer) noexcept:
        """Unread bytes at close() would make the kernel send a reset, which can take the last reply from the peer."""
        cdef char waste[4096]
        cdef int turn
        shutdown(peer.fd, SHUT_WR)
        for turn in range(DISCARD_TURNS):
            if recv(peer.fd, waste, sizeof(waste), MSG_DONTWAIT) <= 0:
                return
