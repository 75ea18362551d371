"""C fields and C calls of the classes of `shardsrv.shards.partition_writes`, for its compiled form only; the fields are explained there."""

from shardsrv.bus._frame cimport Frame
from shardsrv.shards.answers cimport Answers
from shardsrv.shards.session cimport Session
from shardsrv.shards.target cimport Target


cdef class PartitionWrites:
    cdef object _shard
    cdef Answers _answers
    cdef object _links
    cdef object _group_of
    cdef object _park
    cdef dict _waiting
    cdef long long _token

    cpdef write(
        self, Frame frame, Session session, Target target, object operation, object durability, object digest, object body,
        object body_offset
    )
