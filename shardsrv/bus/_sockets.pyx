# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The sockets of one shard: a table of connections, and what waits to be written to each.

Owns the descriptors and the epoll set. Invariants:

* sockets are registered once, edge-triggered, for both directions; nobody changes the registration later;
* an id is slot | generation << 32 and is never used twice; a slot belongs to one connection at a time;
* every slot is at most once in each queue (ready, dirty, parked); an entry outlives its connection harmlessly;
* a connection that is dropped leaves the epoll set before its descriptor is closed, because a copy of the descriptor
  may live on in another process; the handler hears of it at the next poll, once;
* a reply is only queued; `flush` writes one vector a socket; what the kernel does not take waits for an event
  (`blocked`), and meanwhile no further frame of that connection is delivered.
"""

import os

cimport cython
from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset
from posix.fcntl cimport F_GETFL, F_SETFL, O_NONBLOCK, fcntl
from posix.unistd cimport close as close_fd

from shardsrv.bus._arena cimport Arena, Buffer, forks
from shardsrv.bus._frame cimport Ingress
from shardsrv.bus._output cimport output_clear, output_cut, output_push, output_vector, output_written
from shardsrv.bus._sys cimport *

from shardsrv.errors import ConfigurationError, NotAccepted, OurFault

cdef enum:
    HEADER = 256
    UNLOCK_BYTES = 64 << 10    # copies by the kernel from this size on run without the interpreter lock
    VECTOR = 1024              # IOV_MAX of Linux
    DISCARD_TURNS = 16         # of 4 KiB
    NO_SLOT = 0xFFFFFFFF


cdef int fifo_make(Fifo* queue, uint32_t capacity) except -1:
    queue.slots = <uint32_t*>malloc(capacity * sizeof(uint32_t))
    if queue.slots == NULL:
        raise MemoryError
    queue.capacity = capacity
    return 0


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


@cython.no_gc_clear
cdef class Sockets:
    """Connections and their output; `Reactor` receives. See `_net.pyi` for the meaning of each method.

    Args:
        arena: owned by this process; at least a turn chunk and the largest frame must fit.
        frame_size_max: largest size field, bytes; beyond it the connection ends.
        connections_max: beyond it `adopt` refuses.
        unauthenticated_bytes_max: largest frame of a connection before `set_authenticated`.
        ingress_bytes_max: bytes received and not yet dropped; beyond it sockets are not read.
        lockstep: whether a connection is a client's, which asks and waits. Without it frames are delivered as they
            come, also while output waits: two nodes that both write would else wait for each other for ever.
    Raises:
        ConfigurationError: a limit that cannot work.
    """

    def __cinit__(
        self, Arena arena not None, *, size_t frame_size_max, uint32_t connections_max,
        size_t unauthenticated_bytes_max, size_t ingress_bytes_max, bint lockstep=True,
    ):
        self.epoll_fd = -1
        self.generation = forks()
        if not HEADER <= frame_size_max <= 128 << 20:
            raise ConfigurationError("frame_size_max", frame_size_max, "want 256 bytes to 128 MiB")
        if ingress_bytes_max < frame_size_max:
            raise ConfigurationError("ingress_bytes_max", ingress_bytes_max, "the largest frame would never fit")
        if arena.capacity // 2 < frame_size_max:
            raise ConfigurationError("arena_bytes", arena.capacity, "want room for two of the largest frame")
        if not 1 <= connections_max <= 1 << 24:
            raise ConfigurationError("connections_max", connections_max, "want 1 to 16,777,216")
        self.arena = arena
        self.ingress = Ingress(ingress_bytes_max)
        self.frame_size_max = frame_size_max
        self.unauthenticated_bytes_max = unauthenticated_bytes_max
        self.connections_max = connections_max
        self.lockstep = lockstep
        self.free_head = NO_SLOT
        self.closed = []
        self.table = <Connection*>calloc(connections_max, sizeof(Connection))
        self.vector = <iovec*>malloc(VECTOR * sizeof(iovec))
        if self.table == NULL or self.vector == NULL:
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
            self.close_all()
        free(self.table)
        free(self.vector)
        free(self.ready.slots)
        free(self.dirty.slots)
        free(self.parked.slots)

    @property
    def ingress_bytes(self):
        return self.ingress.bytes

    # --- connections -------------------------------------------------------------------------------------------------

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
        """End a connection: out of the epoll set before the descriptor is closed, because a copy of it may live on
        elsewhere.
        """
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
        peer.tcp = peer.authenticated = peer.waiting = peer.readable = peer.ending = False
        peer.blocked = peer.large = False
        peer.closing = 0
        peer.next_free = self.free_head
        self.free_head = <uint32_t>(peer - self.table)
        self.connections -= 1
        self.let_go(peer)
        output_clear(&peer.output)

    def detach(self, uint64_t connection):
        """Give up a connection that has nothing in flight, without closing it. Its descriptor, or None when it is not
        idle.
        """
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
        """End a connection, at once or when its queued output is written. Unknown ids are ignored: it may just have
        gone.
        """
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

    cdef int close_all(self) except -1:
        cdef uint32_t slot
        for slot in range(self.table_used):
            if self.table[slot].fd >= 0:
                self.drop(self.table + slot, 0)
        if self.epoll_fd >= 0:
            close_fd(self.epoll_fd)
            self.epoll_fd = -1
        return 0

    # --- queues ------------------------------------------------------------------------------------------------------

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
        return not (peer.waiting or self.stalled(peer) or self.stopped) and (peer.readable or peer.have > peer.need)

    cdef bint stalled(self, Connection* peer) noexcept:
        """Whether output that the kernel did not take keeps its frames back."""
        return peer.blocked and self.lockstep

    # --- replies -----------------------------------------------------------------------------------------------------

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

    cpdef bint reply_one(self, uint64_t connection, bytes frame) except -1:
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

    def queued(self, uint64_t connection):
        cdef Connection* peer = self.find(connection)
        if peer == NULL:
            return 0, 0
        return peer.output.count - peer.output.head, peer.output.bytes

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
