"""C fields of the classes of `shardsrv.shards.session`, for its compiled form only; the fields are explained there."""


cdef class Session:
    cdef public object connection
    cdef public str address
    cdef public bytes client
    cdef public long long number
    cdef public unsigned int user_id
    cdef public dict targets
    cdef public dict balance
    cdef public bytes attached
    cdef public bint active
    cdef public double seen
