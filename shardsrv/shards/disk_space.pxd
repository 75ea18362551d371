"""C fields and C calls of the classes of `shardsrv.shards.disk_space`, for its compiled form only; the fields are explained there."""

cdef class DiskSpace:
    cdef str _path
    cdef object _look
    cdef long long _reserve
    cdef long long _left

    cpdef bint admits(self, long long size)
