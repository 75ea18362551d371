"""C fields of the classes of `shardsrv.shards.target`, for its compiled form only; the fields are explained there."""


cdef class Target:
    cdef public object identity
    cdef public object group
    cdef public object owner
    cdef public object epoch
    cdef public object durability
    cdef public object offset_durability
    cdef public object holder
