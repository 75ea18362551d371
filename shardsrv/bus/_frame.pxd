"""C view of frames and of the budget that their bytes are charged to."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from shardsrv._core cimport SendTarget
from shardsrv.bus._arena cimport Buffer


cdef inline uint32_t load_u32(const uint8_t* place) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, place, 4)
    return value


cdef inline uint64_t load_u64(const uint8_t* place) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, place, 8)
    return value


cdef class Ingress:
    cdef readonly size_t bytes
    cdef readonly size_t limit
    cdef readonly uint64_t releases           # grows whenever bytes are given back

    cdef inline void charge(self, size_t count) noexcept:
        self.bytes += count

    cdef inline void release(self, size_t count) noexcept:
        self.bytes -= count
        self.releases += 1


cdef class Frame:
    cdef Ingress ingress
    cdef Buffer owner                         # keeps the bytes: a buffer of its own, or a turn chunk shared with others
    cdef uint8_t* data
    cdef readonly size_t size
    cdef readonly uint64_t connection
    # What every request is looked at for, as C fields: the routers are compiled against them.
    cdef readonly uint8_t command
    cdef readonly uint8_t operation
    cdef readonly uint64_t request
    cdef readonly uint64_t session

    cpdef SendTarget parse_send(self)
    cpdef object body_from(self, size_t offset)
    cpdef bytes committed_reply(
        self, uint64_t op, uint64_t timestamp, uint8_t operation, bytes cluster, bytes client, bytes body
    )


cdef Frame new_frame(Ingress ingress, Buffer owner, uint8_t* data, size_t size, uint64_t connection)
