"""C fields and C calls of the classes of `shardsrv.shards.group`, for its compiled form only; the fields are explained there."""

cimport cython

from shardsrv._core cimport Prepare
from shardsrv.store.log_writer cimport LogWriter
from shardsrv.vsr.effects cimport Append, Committed, Refused
from shardsrv.vsr.events cimport Request
from shardsrv.vsr.replica cimport Replica


cdef class Admission:
    cdef public bint open


cdef class Group:
    cdef public object host
    cdef public Admission admission
    cdef public list written
    cdef public Replica replica
    cdef public LogWriter log
    cdef public long long append_token
    cdef public long long appended_bytes
    cdef public object waiting
    cdef public object fault
    cdef public bint in_dirty_list
    cdef public bint in_sync_list
    cdef public bint suspected
    cdef public unsigned long long applied_checksum
    cdef public object transfer
    cdef public int ticks_due
    cdef public int rest

    cpdef submit(self, Request request)
    cpdef resume(self)
    cpdef carry_out(self, list effects)
    cpdef committed(self, Committed effect)
    @cython.locals(token=cython.longlong)
    cpdef flush(self)
    cpdef flushed(self)
    @cython.locals(prepare=Prepare)
    cdef _append(self, Append effect)
    cdef _refused(self, Refused effect)
