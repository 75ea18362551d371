"""C fields and C calls of the classes of `shardsrv.plane.partition.dedup`, for its compiled form only; the fields are explained there."""

cdef class DedupWindow:
    cdef public long long size
    cdef dict _known
    cdef object _order
    cdef dict _newest

    cpdef find(self, bytes key)
    cpdef insert(self, bytes key, object op, object base_offset, object timestamp)
    cpdef commit(self, long long op)
