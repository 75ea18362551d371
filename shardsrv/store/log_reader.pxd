"""C fields of the classes of `shardsrv.store.log_reader`, for its compiled form only; the fields are explained there."""


cdef class LogReader:
    cdef public list _bases
    cdef public object _disk
    cdef public list _firsts
    cdef public object _indexes
    cdef public object _pool
    cdef public list _segments
    cdef public str directory
    cdef public unsigned long long floor_op
    cdef public unsigned long long head_checksum
    cdef public long long head_op
    cdef public object identity
    cdef public long long index_failures
