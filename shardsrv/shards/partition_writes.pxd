"""C fields and C calls of the classes of `shardsrv.shards.partition_writes`, for its compiled form only; the fields are explained there."""

cimport cython

from shardsrv.bus._frame cimport Frame
from shardsrv.shards.answers cimport Answers
from shardsrv.shards.partition_group cimport PartitionGroup
from shardsrv.shards.session cimport Session
from shardsrv.shards.target cimport Target


cdef class PartitionWrites:
    cdef int _shard
    cdef Answers _answers
    cdef object _links
    cdef object _group_of
    cdef object _park
    cdef dict _waiting
    cdef long long _token

    @cython.locals(group=PartitionGroup)
    cpdef write(
        self, Frame frame, Session session, Target target, int operation, int durability, unsigned long long digest,
        object body, object body_offset
    )
