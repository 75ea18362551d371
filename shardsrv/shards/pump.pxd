"""C fields and C calls of the classes of `shardsrv.shards.pump`, for its compiled form only; the fields are explained there."""


cdef class Pump:
    cdef object _reactor
    cdef object _links
    cdef object _handler
    cdef object _on_record
    cdef list _written
    cdef public object after_write
    cdef public long long turns

    cpdef appended(self, object group)
    cpdef settle(self)
    cpdef turn(self, int timeout_us)
    cpdef run_turns(self)
