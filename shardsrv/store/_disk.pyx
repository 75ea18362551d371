"""The hot end of a log: entries gathered for one write, checked against the chain, and written with one system call.

Owns the buffered entries of one segment (`EntryRun`). Invariants: an entry is taken only behind the one before it; the vector points into
headers and bodies of entries that the run keeps alive; nothing is copied. What a segment is, and when a new one begins, is
decided by `shardsrv.store.log`.
"""

cimport cython
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from posix.types cimport off_t

from shardsrv._core cimport (
    AT_BATCH_BASE_OFFSET, AT_BATCH_COUNT, AT_BORN_VIEW, AT_CHECKSUM, AT_OP, AT_OPERATION, AT_PARENT, AT_VIEW, GIL_RELEASE_BYTES,
    HEADER_BYTES, OPERATION_SEND_MESSAGES, Prepare, load32, load64,
)

import os

cdef extern from "unistd.h" nogil:
    int fdatasync(int fd)

cdef extern from "sys/uio.h" nogil:
    ssize_t pwritev(int fd, const iovec* vectors, int count, off_t offset)

cdef enum:
    MAX_CALL = 1024            # IOV_MAX of Linux
    PURGE_PARTITION = 192
    BATCH_HEADER_BYTES = 256

# Flags of `EntryRun.add`.
TAKEN = 0
INDEXED = 1                    # the entry is the first SendMessages at or behind `index_due`
ENDED = 2                      # the entry is the last of its segment
UNCHAINED = 4                  # refused: it does not follow; nothing was changed

cdef enum:
    F_INDEXED = 1
    F_ENDED = 2
    F_UNCHAINED = 4


@cython.final
cdef class EntryRun:
    """Entries buffered for one segment: bytes ``start``..``end`` of its file. See the type stub."""

    def __cinit__(self):
        self.vectors = NULL
        self.count = self.capacity = 0

    def __dealloc__(self):
        free(self.vectors)

    def __init__(
        self, segment, uint64_t start, bytes head, uint64_t op, uint64_t checksum, uint64_t next_offset, uint64_t floor_op,
        uint64_t generation, uint64_t index_due, uint64_t segment_size,
    ):
        self.segment = segment
        self.start = self.end = start
        self.op = op
        self.checksum = checksum
        self.next_offset = next_offset
        self.floor_op = floor_op
        self.generation = generation
        self.index_due = index_due
        self.segment_size = segment_size
        self.entries = []
        self.head = head
        if head is not None:
            self.push(<const uint8_t*>head, len(head))
            self.end += len(head)

    cdef int push(self, const uint8_t* data, size_t length) except -1:
        cdef iovec* grown
        cdef size_t capacity
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 16
            grown = <iovec*>realloc(self.vectors, capacity * sizeof(iovec))
            if grown == NULL:
                raise MemoryError("no memory for the vector of a write")
            self.vectors = grown
            self.capacity = capacity
        self.vectors[self.count].iov_base = <void*>data
        self.vectors[self.count].iov_len = length
        self.count += 1
        return 0

    cpdef int add(self, Prepare prepare) except -1:
        cdef const uint8_t* header = prepare.raw
        cdef int flags = 0
        cdef uint8_t operation
        cdef uint64_t position = self.end
        if self.ended or load64(header + AT_OP) != self.op + 1 or load64(header + AT_PARENT) != self.checksum:
            return F_UNCHAINED
        if load32(header + AT_VIEW) != load32(header + AT_BORN_VIEW):
            prepare = prepare.with_view(load32(header + AT_BORN_VIEW))
            header = prepare.raw
        self.entries.append(prepare)
        self.push(header, HEADER_BYTES)
        if prepare.body_length:
            self.push(prepare.body_data, prepare.body_length)
        self.end = position + HEADER_BYTES + prepare.body_length
        self.op += 1
        self.checksum = load64(header + AT_CHECKSUM)
        operation = header[AT_OPERATION]
        if operation == OPERATION_SEND_MESSAGES and prepare.body_length >= BATCH_HEADER_BYTES:
            self.last_offset = load64(prepare.body_data + AT_BATCH_BASE_OFFSET)
            self.next_offset = self.last_offset + load32(prepare.body_data + AT_BATCH_COUNT)
            if position >= self.index_due:
                self.last_position = position
                flags = F_INDEXED
        elif operation == PURGE_PARTITION and prepare.body_length >= 8 and load64(prepare.body_data) > self.generation:
            # A purge of a generation that is not newer changes nothing; it still ends its segment.
            self.generation = load64(prepare.body_data)
            self.next_offset = 0
            self.floor_op = self.op
        if self.end >= self.segment_size or operation == PURGE_PARTITION:
            self.ended = True
            flags |= F_ENDED
        return flags

    def buffers(self):
        parts = [] if self.head is None else [self.head]
        for prepare in self.entries:
            parts.append(prepare.header)
            if (<Prepare>prepare).body_length:
                parts.append(prepare.body)
        return parts

    cpdef int write(self, int handle) except -1:
        cdef iovec* vectors = self.vectors
        cdef size_t left = self.count
        cdef off_t position = self.start
        cdef size_t length = self.end - self.start
        cdef ssize_t written
        cdef int call
        while left:
            call = <int>min(left, <size_t>MAX_CALL)
            if length > GIL_RELEASE_BYTES:
                with nogil:
                    written = pwritev(handle, vectors, call, position)
            else:
                written = pwritev(handle, vectors, call, position)
            if written < 0:
                if errno == EINTR:
                    continue
                raise OSError(errno, os.strerror(errno))
            position += written
            while left and <size_t>written >= vectors.iov_len:
                written -= vectors.iov_len
                vectors += 1
                left -= 1
            if left:
                vectors.iov_base = <uint8_t*>vectors.iov_base + written
                vectors.iov_len -= written
        return 0

    cpdef settle(self):
        self.start = self.end
        self.count = 0
        self.head = None
        self.entries.clear()


def sync_files(list handles not None):
    """Sync the data of every file, giving the interpreter away once for all of them.

    Returns: None, or (position in ``handles``, errno) of the first that failed; those behind it were not tried.
    """
    cdef Py_ssize_t count = len(handles)
    cdef Py_ssize_t index
    cdef int failed = 0
    cdef int* descriptors = <int*>malloc((count + 1) * sizeof(int))
    if descriptors == NULL:
        raise MemoryError
    try:
        for index in range(count):
            descriptors[index] = handles[index]
        index = 0
        with nogil:
            while index < count:
                if fdatasync(descriptors[index]) == 0:
                    index += 1
                elif errno != EINTR:
                    failed = errno
                    break
        return (index, failed) if failed else None
    finally:
        free(descriptors)
