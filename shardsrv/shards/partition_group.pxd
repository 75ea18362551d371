"""C fields of the classes of `shardsrv.shards.partition_group`, for its compiled form only; the fields are explained there."""

from shardsrv.shards.group cimport Group


cdef class PartitionGroup(Group):
    cdef public object checkpoint
    cdef public long long checkpointed_at
    cdef public bint closed
    cdef public object counter_slot
    cdef public object identity
    cdef public object plane
    cdef public dict polled
    cdef public object purge_asked
    cdef public object purge_wanted
    cdef public int purging
    cdef public bint replayed
    cdef public dict resume_points
    cdef public object segments_seen
    cdef public object settings
    cdef public long long written_bytes

    cpdef tuple poll(self, object strategy, object value, object count, object stored)
    cdef tuple _read(self, object plan)
    cdef _remember(self, object offset, object position)
    cdef _read_size(self, object count)
