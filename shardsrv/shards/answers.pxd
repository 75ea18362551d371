"""C fields and C calls of the classes of `shardsrv.shards.answers`, for its compiled form only; the fields are explained there."""

from shardsrv.bus._frame cimport Frame


cdef class Answers:
    cdef object _reactor
    cdef bytes _cluster
    cdef public object metadata_commit

    cpdef committed(self, Frame frame, object op, object timestamp, object operation, bytes client, bytes body)


cdef class Origin:
    cpdef committed(self, object op, object timestamp, object operation, bytes reply)
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
