"""C fields and C calls of the classes of `shardsrv.plane.partition.plane`, for its compiled form only; the fields are explained there."""

from shardsrv.plane.partition.dedup cimport DedupWindow
from shardsrv.vsr.events cimport Request
from shardsrv.vsr.plane cimport Plane


cdef class PartitionPlane(Plane):
    cdef public object partition
    cdef public long long consumer_offsets_max
    cdef bytes _reply_prefix
    cdef public long long applied_op
    cdef public object timestamp
    cdef public long long next_offset
    cdef public long long first_offset
    cdef public long long bytes
    cdef public long long purge_generation
    cdef public long long purge_op
    cdef public dict consumer_offsets
    cdef public dict group_offsets
    cdef public DedupWindow dedup
    cdef public long long head_next_offset
    cdef long long _head_generation
    cdef list _in_flight
    cdef object _asked
    cdef object _asked_key

    cpdef admit(self, Request request)
    cpdef find(self, Request request)
    cpdef prepare(self, Request request, op, timestamp)
    cpdef apply(self, prepare)
    cdef bytes _send_reply(self, base_offset)
