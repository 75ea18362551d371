"""C fields of the classes of `shardsrv.shards.target`, for its compiled form only; the fields are explained there."""

from shardsrv.shards.partition_group cimport PartitionGroup


cdef class Target:
    cdef public object identity
    cdef public object group
    cdef public int owner
    cdef public long long epoch
    cdef public int durability
    cdef public int offset_durability
    cdef public PartitionGroup holder
