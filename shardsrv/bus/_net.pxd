"""C view of the reactor."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardsrv.bus._arena cimport Buffer
from shardsrv.bus._sockets cimport Connection, Sockets
from shardsrv.bus._sys cimport epoll_event


cdef class Reactor(Sockets):
    cdef readonly uint64_t frames_received
    cdef readonly uint64_t bytes_received
    cdef readonly uint64_t parkings
    cdef uint64_t seen_releases
    cdef uint64_t seen_frees
    cdef list woken            # tokens of watched descriptors that the handler has not heard of
    cdef dict watches          # token -> (fd, key, is_eventfd)
    cdef uint64_t next_watch
    cdef Buffer chunk          # the turn chunk
    cdef size_t cursor
    cdef epoll_event* events
    cdef bint polling
    cdef bint precise          # the kernel knows epoll_pwait2

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
    cdef int deliver(self, Connection* peer, Buffer owner, uint8_t* data, size_t size, object on_frame) except -1
    cdef int ended(self, Connection* peer, ssize_t result, int error) except -1
    cdef void park(self, Connection* peer) noexcept
    cdef bint room_returned(self) noexcept
    cdef void unpark(self) noexcept
