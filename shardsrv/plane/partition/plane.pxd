"""C fields and C calls of the classes of `shardsrv.plane.partition.plane`, for its compiled form only; the fields are explained there."""

cimport cython

from shardsrv._core cimport Prepare, batch_count, dedup_key, send_reply_body, stamp_batch
from shardsrv.plane.partition.dedup cimport DedupWindow
from shardsrv.vsr.events cimport Request
from shardsrv.vsr.plane cimport Plane

# Constants of the hot path, as C values.
cdef int HEADER_SIZE
cdef int _SEND
cdef int STRIDE


cdef class PartitionPlane(Plane):
    cdef public unsigned int partition
    cdef public long long consumer_offsets_max
    cdef unsigned int _stream
    cdef unsigned int _topic
    cdef public long long applied_op
    cdef public long long timestamp
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
    cdef object _asked
    cdef bytes _asked_key

    cpdef admit(self, Request request)
    cpdef find(self, Request request)
    @cython.locals(base=cython.longlong, operation=int, key=bytes)
    cpdef tuple prepare(self, Request request, long long op, long long timestamp)
    @cython.locals(op=cython.longlong)
    cpdef bytes apply(self, Prepare prepare)
    cdef bytes _send_reply(self, long long base_offset)
