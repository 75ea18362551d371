"""C fields of the classes of `shardsrv.shards.partition_group`, for its compiled form only; the fields are explained there."""

cimport cython

from shardsrv._core cimport Prepare
from shardsrv.plane.partition.plane cimport PartitionPlane
from shardsrv.shards.answers cimport Origin
from shardsrv.shards.disk_space cimport DiskSpace
from shardsrv.shards.group cimport Group
from shardsrv.vsr.effects cimport Committed
from shardsrv.vsr.events cimport Request

# A constant of the hot path, as a C value.
cdef int _SEND


cdef class PartitionGroup(Group):
    cdef public object checkpoint
    cdef public long long checkpointed_at
    cdef public bint closed
    cdef public object counter_slot
    cdef public object identity
    cdef public PartitionPlane plane
    cdef DiskSpace _disk_space
    cdef object _syncer
    cdef bint _shares_counters
    cdef long long _checkpoint_bytes
    cdef public dict polled
    cdef public object purge_asked
    cdef public object purge_wanted
    cdef public int purging
    cdef public bint replayed
    cdef public dict resume_points
    cdef public long long segments_seen
    cdef public object settings
    cdef public long long written_bytes

    @cython.locals(prepare=Prepare, operation=int, origin=Origin)
    cpdef committed(self, Committed effect)
    @cython.locals(written=cython.longlong)
    cpdef flushed(self)
    cpdef tuple poll(self, object strategy, object value, object count, object stored)
    cdef tuple _read(self, object plan)
    cdef _remember(self, object offset, object position)
    cdef _read_size(self, object count)
