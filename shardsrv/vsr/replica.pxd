"""C fields and C calls of the classes of `shardsrv.vsr.replica`, for its compiled form only; the fields are explained there."""

from shardsrv.vsr.events cimport Request
from shardsrv.vsr.pipeline cimport Pipeline
from shardsrv.vsr.plane cimport Plane


cdef class Replica:
    cdef bint _always_synced
    cdef long long _appended
    cdef object _durable_state
    cdef object _gate
    cdef object _last_timestamp
    cdef bint _leads
    cdef Pipeline _pipeline
    cdef long long _quorum
    cdef object _state
    cdef long long _state_token
    cdef long long _synced
    cdef long long _token
    cdef public object commit_max
    cdef public object commit_min
    cdef public str fence_reason
    cdef public object head_checksum
    cdef public object head_op
    cdef public object identity
    cdef public Plane plane
    cdef public object policy
    cdef public int status
    cdef public object view

    cpdef list step(self, object event)
    cdef _request(self, Request request, list out)
    cdef _append(self, Request request, object user_id, list out)
    cdef _advance_commit(self, list out)
    cdef _commit(self, object prepare)
