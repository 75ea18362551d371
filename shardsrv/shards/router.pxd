"""C fields and C calls of the classes of `shardsrv.shards.router`, for its compiled form only; the fields are explained there."""

cimport cython

from shardsrv._core cimport SendTarget
from shardsrv.bus._frame cimport Frame
from shardsrv.shards.answers cimport Answers
from shardsrv.shards.partition_writes cimport PartitionWrites
from shardsrv.shards.session cimport Session
from shardsrv.shards.target cimport Target

# Constants of the hot path, as C values.
cdef int _SEND
cdef int _REQUEST


cdef class Router:
    cdef Answers _answers
    cdef object _sessions
    cdef dict _connections
    cdef object _targets
    cdef object _reads
    cdef PartitionWrites _writes
    cdef object _offsets
    cdef object _segments
    cdef object _metadata
    cdef object _cipher
    cdef object _start
    cdef object _step
    cdef public long long _encrypting
    cdef public long long metadata_op

    @cython.locals(operation=int, session=Session)
    cpdef on_frame(self, Frame frame)
    @cython.locals(found=SendTarget, target=Target)
    cdef _send(self, Frame frame, Session session)
