"""C view of the connections of a shard."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardsrv.bus._arena cimport Arena
from shardsrv.bus._frame cimport Ingress
from shardsrv.bus._output cimport Output
from shardsrv.bus._sys cimport iovec

cdef enum:
    # Why a connection ended; the public names are CLOSED_ and these.
    BY_PEER = 1
    BY_RESET = 2
    BAD_SIZE = 3
    BAD_COMMAND = 4
    BY_US = 5
    OVER_BUDGET = 6


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
    bint large                 # its last frame was larger than one read at the cursor
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


cdef object failure(str what)


cdef class Sockets:
    cdef readonly Arena arena
    cdef readonly int epoll_fd
    cdef readonly uint32_t connections
    cdef readonly uint32_t connections_max
    cdef readonly uint64_t bytes_sent
    cdef Ingress ingress
    cdef size_t frame_size_max
    cdef size_t unauthenticated_bytes_max
    cdef Connection* table
    cdef uint32_t table_used   # slots that were ever taken
    cdef uint32_t free_head
    cdef Fifo ready            # those that may have a frame
    cdef Fifo dirty            # those that flush() writes
    cdef Fifo parked           # those that wait for room
    cdef list closed           # (connection id, reason) that the handler has not heard of
    cdef iovec* vector
    cdef uint64_t generation   # forks() when it was made
    cdef bint stopped
    cdef bint lockstep
    cdef object __weakref__

    cpdef bint reply_one(self, uint64_t connection, bytes frame) except -1
    cdef Connection* find(self, uint64_t connection) noexcept
    cdef uint64_t id_of(self, Connection* peer) noexcept
    cdef void push_ready(self, Connection* peer) noexcept
    cdef void push_dirty(self, Connection* peer) noexcept
    cdef bint has_more(self, Connection* peer) noexcept
    cdef bint stalled(self, Connection* peer) noexcept
    cdef void let_go(self, Connection* peer) noexcept
    cdef void release_slot(self, Connection* peer) noexcept
    cdef int drop(self, Connection* peer, int reason) except -1
    cdef int close_all(self) except -1
    cdef int append(self, Connection* peer, object part) except -1
    cdef int answered(self, Connection* peer) except -1
    cdef int write_out(self, Connection* peer) except -1
    cdef void discard_input(self, Connection* peer) noexcept
