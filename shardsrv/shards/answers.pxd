"""C fields and C calls of the classes of `shardsrv.shards.answers`, for its compiled form only; the fields are explained there."""

from shardsrv.bus._frame cimport Frame
from shardsrv.bus._net cimport Reactor


cdef class Answers:
    cdef Reactor _reactor
    cdef bytes _cluster
    cdef public object metadata_commit

    cpdef committed(
        self, Frame frame, unsigned long long op, unsigned long long timestamp, int operation, bytes client, bytes body
    )


cdef class Origin:
    cpdef committed(self, unsigned long long op, unsigned long long timestamp, int operation, bytes reply)
    cpdef refused(self, object outcome, object status)


cdef class FrameOrigin(Origin):
    cdef public Answers answers
    cdef public Frame frame
    cdef public bytes client


cdef class RemoteOrigin(Origin):
    cdef public object links
    cdef public object home
    cdef public object token


cdef class NoOrigin(Origin):
    pass
