"""C fields and C calls of the classes of `shardsrv.store.log_writer`, for its compiled form only; the fields are explained there."""

cimport cython

from shardsrv._core cimport Prepare
from shardsrv.store._disk cimport EntryRun
from shardsrv.store.log_reader cimport LogReader


cdef class LogWriter(LogReader):
    cdef public bint _direct
    cdef public bint _directory_dirty
    cdef public dict _dirty
    cdef public str _fence
    cdef public bint _head_full
    cdef public bint _preallocate
    cdef public list _purges
    cdef public EntryRun _run
    cdef public list _runs
    cdef public long long _segment_size
    cdef public long long next_offset

    @cython.locals(run=EntryRun, flags=int)
    cpdef append(self, Prepare prepare)
    @cython.locals(run=EntryRun, done=EntryRun, handle=int)
    cpdef flush(self)
