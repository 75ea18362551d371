"""C fields and C calls of the classes of `shardsrv.vsr.pipeline`, for its compiled form only; the fields are explained there."""

cimport cython

from shardsrv._core cimport Prepare


cdef class PipelineEntry:
    cdef public long long token
    cdef public Prepare prepare
    cdef public object origin
    cdef public bint synced
    cdef public object appended_acks
    cdef public object synced_acks
    cdef public object clock_refusals
    cdef public list waiters

    cpdef clear(self)


cdef class Pipeline:
    cdef public long long depth
    cdef public list entries
    cdef list _spare

    @cython.locals(entry=PipelineEntry)
    cpdef push(self, long long token, Prepare prepare, object origin, bint synced)
    cpdef pop(self, PipelineEntry entry)
    @cython.locals(first=PipelineEntry, index=cython.longlong)
    cpdef PipelineEntry at(self, long long op)
