"""C fields and C calls of the classes of `shardsrv.shards.pump`, for its compiled form only; the fields are explained there."""

from shardsrv.bus._net cimport Reactor
from shardsrv.shards.group cimport Group


cdef class Pump:
    cdef Reactor _reactor
    cdef object _links
    cdef object _on_record
    cdef list _written
    cdef public object handler
    cdef public object outlet
    cdef public object syncer
    cdef public long long turns
    cdef public double asleep_since

    cpdef settle(self)
    cpdef turn(self, int timeout_us)
    cpdef run_turns(self)
