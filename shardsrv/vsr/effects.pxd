"""C fields and C calls of the classes of `shardsrv.vsr.effects`, for its compiled form only; the fields are explained there."""

from shardsrv._core cimport Prepare
from shardsrv.vsr.record cimport Record


cdef class Append(Record):
    cdef public long long token
    cdef public Prepare prepare
    cdef public bint sync


cdef class SyncLog(Record):
    cdef public object token


cdef class PersistState(Record):
    cdef public object token
    cdef public object state


cdef class Committed(Record):
    cdef public Prepare prepare
    cdef public object origin
    cdef public bytes reply


cdef class Repeat(Record):
    cdef public object origin
    cdef public object op
    cdef public object timestamp
    cdef public object operation
    cdef public object reply


cdef class Refused(Record):
    cdef public object origin
    cdef public object status
    cdef public object eviction
    cdef public object silent
    cdef public object reason


cdef class Send(Record):
    cdef public object replica
    cdef public object header
    cdef public object body


cdef class TruncateFrom(Record):
    cdef public object token
    cdef public object op


cdef class ReadPrepare(Record):
    cdef public object token
    cdef public object op
    cdef public object checksum


cdef class Fatal(Record):
    cdef public object error
