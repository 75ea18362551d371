"""C fields and C calls of the classes of `shardsrv.vsr.record`, for its compiled form only; the fields are explained there."""

cdef class Record:
    pass
