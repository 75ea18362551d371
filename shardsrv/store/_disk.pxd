"""C view of the entries gathered for one write."""

from libc.stdint cimport uint8_t, uint64_t

from shardsrv._core cimport Prepare


cdef extern from "sys/uio.h" nogil:
    cdef struct iovec:
        void* iov_base
        size_t iov_len


cdef class EntryRun:
    cdef public object segment
    cdef readonly uint64_t start
    cdef readonly uint64_t end
    cdef readonly uint64_t op
    cdef readonly uint64_t checksum
    cdef readonly uint64_t next_offset
    cdef readonly uint64_t floor_op
    cdef readonly uint64_t generation
    cdef readonly uint64_t last_offset
    cdef readonly uint64_t last_position
    cdef public uint64_t index_due
    cdef readonly bint ended
    cdef uint64_t segment_size
    cdef bytes head
    cdef list entries
    cdef iovec* vectors
    cdef size_t count
    cdef size_t capacity

    cdef int push(self, const uint8_t* data, size_t length) except -1
    cpdef int add(self, Prepare prepare) except -1
    cpdef int write(self, int handle) except -1
    cpdef settle(self)
