"""C fields and C calls of the classes of `shardsrv.vsr.replica`, for its compiled form only; the fields are explained there."""

cimport cython

from shardsrv._core cimport Prepare, PrepareMould
from shardsrv.vsr.events cimport Persisted, Request
from shardsrv.vsr.pipeline cimport Pipeline, PipelineEntry
from shardsrv.vsr.plane cimport Plane

# Constants of the hot path, as C values.
cdef int FENCED
cdef int NORMAL
cdef int RECOVERING
cdef int PERSISTED
cdef int SYNCED
cdef unsigned long long _NUMBER_MAX


cdef class Replica:
    cdef bint _always_synced
    cdef PrepareMould _mould
    cdef long long _appended
    cdef long long _quorum
    cdef long long _synced
    cdef public long long barrier
    cdef public long long commit_max
    cdef public long long commit_min
    cdef public object durable_state
    cdef public str fence_reason
    cdef public object gate
    cdef public unsigned long long head_checksum
    cdef public long long head_op
    cdef public object identity
    cdef public long long last_timestamp
    cdef public bint leads
    cdef public long long log_view
    cdef public object member
    cdef public Pipeline pipeline
    cdef public Plane plane
    cdef public object policy
    cdef public long long state_token
    cdef public int status
    cdef public long long token
    cdef public long long view
    cdef public object wanted_state

    cpdef bint accepts(self)
    @cython.locals(persisted=Persisted)
    cpdef list step(self, object event)
    @cython.locals(user_id=cython.longlong)
    cdef _request(self, Request request, list out)
    @cython.locals(
        op=cython.longlong, durability=int, now=cython.longlong, last=cython.longlong, timestamp=cython.longlong,
        prepare=Prepare, token=cython.longlong, synced=bint, checksum_body=cython.ulonglong
    )
    cdef _append(self, Request request, long long user_id, list out)
    @cython.locals(
        entry=PipelineEntry, prepare=Prepare, appended=cython.longlong, synced=cython.longlong, others=cython.longlong,
        reply=bytes
    )
    cpdef advance_commit(self, list out)
    cpdef bytes commit_entry(self, Prepare prepare)
