"""C fields and C calls of the classes of `shardsrv.vsr.replica`, for its compiled form only; the fields are explained there."""

from shardsrv.vsr.events cimport Request
from shardsrv.vsr.pipeline cimport Pipeline
from shardsrv.vsr.plane cimport Plane


cdef class Replica:
    cdef bint _always_synced
    cdef long long _appended
    cdef long long _quorum
    cdef long long _synced
    cdef public long long barrier
    cdef public object commit_max
    cdef public object commit_min
    cdef public object durable_state
    cdef public str fence_reason
    cdef public object gate
    cdef public object head_checksum
    cdef public object head_op
    cdef public object identity
    cdef public object last_timestamp
    cdef public bint leads
    cdef public long long log_view
    cdef public object member
    cdef public Pipeline pipeline
    cdef public Plane plane
    cdef public object policy
    cdef public long long state_token
    cdef public int status
    cdef public long long token
    cdef public object view
    cdef public object wanted_state

    cpdef list step(self, object event)
    cdef _request(self, Request request, list out)
    cdef _append(self, Request request, object user_id, list out)
    cpdef advance_commit(self, list out)
    cpdef commit_entry(self, object prepare)
