"""C fields and C calls of the classes of `shardsrv.shards.group`, for its compiled form only; the fields are explained there."""

from shardsrv.vsr.effects cimport Append, Committed, Refused


cdef class Admission:
    cdef public bint open


cdef class Group:
    cdef public object host
    cdef public Admission admission
    cdef public list written
    cdef public object replica
    cdef public object log
    cdef public long long append_token
    cdef public long long appended_bytes
    cdef public object waiting
    cdef public object fault
    cdef public bint in_dirty_list
    cdef public bint in_sync_list
    cdef public object suspected
    cdef public object applied_checksum
    cdef public object transfer
    cdef public int ticks_due

    cpdef submit(self, object request)
    cpdef resume(self)
    cpdef carry_out(self, list effects)
    cpdef committed(self, Committed effect)
    cpdef flush(self)
    cpdef flushed(self)
    cdef _append(self, Append effect)
    cdef _refused(self, Refused effect)
