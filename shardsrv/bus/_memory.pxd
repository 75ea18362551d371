"""C view of lanes, wake words and counters."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardsrv.bus._arena cimport Region


cdef class Lane:
    cdef Region region
    cdef uint8_t* ring
    cdef uint64_t* shared_head
    cdef uint64_t* shared_tail
    cdef readonly size_t capacity
    cdef readonly size_t record_max                 # largest payload that always fits once the ring is empty
    cdef uint64_t head                              # receiver: next byte to consume
    cdef uint64_t tail                              # sender: end of what was pushed, published or not
    cdef uint64_t seen_head                         # sender: last head read from the receiver
    cdef bint push_c(self, uint32_t kind, size_t total, uint8_t** place) noexcept nogil
    cdef bint pending_c(self) noexcept nogil
    cdef void publish_c(self) noexcept nogil


cdef class Wake:
    cdef Region region
    cdef uint32_t* word
    cdef readonly int fd
    cdef readonly uint64_t wakes
    cdef bint notify_c(self) noexcept nogil


cdef class Counters:
    cdef Region region
    cdef uint64_t* base
    cdef readonly size_t slots
    cdef uint64_t* at(self, Py_ssize_t slot) except NULL
