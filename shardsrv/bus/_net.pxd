"""C view of the reactor."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardsrv.bus._arena cimport Arena, Buffer
from shardsrv.bus._frame cimport Ingress
from shardsrv.bus._output cimport Output
from shardsrv.bus._sys cimport epoll_event, iovec


cdef struct Connection:
    int fd                     # -1: free slot
    uint32_t generation        # of the connection that holds the slot, or that will
    uint32_t next_free
    bint tcp
    bint authenticated
    bint waiting               # a frame of it is with the handler
    bint readable              # the kernel may have more bytes: an event came, and no read has emptied the socket since
    bint ending                # the peer will send no more: a short read does not mean that nothing is left to learn
    bint blocked               # the kernel took no more output
    bint queued                # its slot is in the ready queue
    bint dirty                 # its slot is in the list that flush() walks
    bint parked                # its slot is in the list of those that wait for room
    uint32_t closing           # reason to close with once the output is written, else 0
    PyObject* buffer           # Buffer that the bytes below lie in, or NULL
    uint8_t* data              # first byte received and not delivered
    size_t have                # bytes at `data`
    size_t need                # size of the frame at `data` when the buffer is its own, 0 when it is a turn chunk
    size_t charged             # bytes of these charged to the ingress budget
    uint32_t stashed           # bytes of an incomplete header
    uint8_t stash[256]
    PyObject* address          # str
    Output output


cdef struct Fifo:
    uint32_t* slots
    uint32_t head
    uint32_t count
    uint32_t capacity


cdef class Reactor:
    cdef readonly Arena arena
    cdef readonly int epoll_fd
    cdef readonly uint32_t connections
    cdef readonly uint32_t connections_max
    cdef readonly uint64_t frames_received
    cdef readonly uint64_t bytes_received
    cdef readonly uint64_t bytes_sent
    cdef readonly uint64_t parkings
    cdef Ingress ingress
    cdef size_t frame_size_max
    cdef size_t unauthenticated_bytes_max
    cdef Connection* table
    cdef uint32_t table_used   # slots that were ever taken
    cdef uint32_t free_head
    cdef Fifo ready
    cdef Fifo dirty
    cdef Fifo parked
    cdef uint64_t seen_releases
    cdef uint64_t seen_frees
    cdef list closed           # queue of (connection id, reason) that the handler has not heard of
    cdef list woken            # queue of watch tokens
    cdef dict watches          # token -> (fd, key, is_eventfd)
    cdef uint64_t next_watch
    cdef Buffer chunk
    cdef size_t cursor
    cdef epoll_event* events
    cdef iovec* vector
    cdef uint64_t generation   # forks() when it was made
    cdef bint stopped
    cdef bint polling
    cdef bint precise          # the kernel knows epoll_pwait2
    cdef object __weakref__

    cdef Connection* find(self, uint64_t connection) noexcept
    cdef uint64_t id_of(self, Connection* peer) noexcept
    cdef void push_ready(self, Connection* peer) noexcept
    cdef void push_dirty(self, Connection* peer) noexcept
    cdef bint has_more(self, Connection* peer) noexcept
    cdef int wait(self, long timeout_us) except -1
    cdef int note(self, epoll_event* event) except -1
    cdef int service(self, Connection* peer, object on_frame) except -1
    cdef int receive_own(self, Connection* peer, object on_frame) except -1
    cdef int receive_shared(self, Connection* peer, object on_frame) except -1
    cdef int take(self, Connection* peer, uint8_t* data, size_t have, object on_frame) except -1
    cdef int take_part(
        self, Connection* peer, Buffer owner, uint8_t* data, size_t have, size_t size, object on_frame
    ) except -1
    cdef void keep(self, Connection* peer, Buffer owner, uint8_t* data, size_t have) noexcept
    cdef void advance(self, uint8_t* end) noexcept
    cdef void release_slot(self, Connection* peer) noexcept
    cdef void discard_input(self, Connection* peer) noexcept
    cdef int deliver(self, Connection* peer, Buffer owner, uint8_t* data, size_t size, object on_frame) except -1
    cdef int ended(self, Connection* peer, ssize_t result, int error) except -1
    cdef void let_go(self, Connection* peer) noexcept
    cdef void park(self, Connection* peer) noexcept
    cdef bint room_returned(self) noexcept
    cdef void unpark(self) noexcept
    cdef int answered(self, Connection* peer) except -1
    cdef int write_out(self, Connection* peer) except -1
    cdef int drop(self, Connection* peer, int reason) except -1
    cdef int append(self, Connection* peer, object part) except -1
