"""C fields and C calls of the classes of `shardsrv.vsr.events`, for its compiled form only; the fields are explained there."""

from shardsrv.vsr.record cimport Record


cdef class Request(Record):
    cdef public bytes client
    cdef public unsigned long long session
    cdef public unsigned long long request
    cdef public int operation
    cdef public unsigned int user_id
    cdef public unsigned long long digest
    cdef public int durability
    cdef public object body
    cdef public object origin
    cdef public long long now


cdef class Persisted(Record):
    cdef public long long token
    cdef public int level


cdef class PersistFailed(Record):
    cdef public object token
    cdef public object reason


cdef class StatePersisted(Record):
    cdef public object token
    cdef public object state


cdef class Tick(Record):
    cdef public object now
    cdef public int ticks


cdef class Message(Record):
    cdef public int peer
    cdef public object header
    cdef public object body
    cdef public object now


cdef class PrepareRead(Record):
    cdef public object token
    cdef public object prepare


cdef class Truncated(Record):
    cdef public object token
