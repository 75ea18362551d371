"""C fields and C calls of the classes of `shardsrv.shards.router`, for its compiled form only; the fields are explained there."""

from shardsrv.bus._frame cimport Frame
from shardsrv.shards.answers cimport Answers


cdef class Router:
    cdef object _shard
    cdef Answers _answers
    cdef object _sessions
    cdef object _targets
    cdef object _links
    cdef object _group_of
    cdef object _reads
    cdef object _park
    cdef dict _waiting
    cdef long long _token
    cdef public object metadata_op

    cpdef on_frame(self, Frame frame)
    cdef _send(self, Frame frame, object session)
    cdef _write(
        self, Frame frame, object session, object target, object operation, object durability, object digest, object body, object body_offset
    )
