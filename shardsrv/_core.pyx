"""Compiled primitives: hashes, cursor, batches, prepares, log scan, poll slices, reply headers.

Owns every byte-exact structure that is touched once per message or once per request. Invariants: a buffer is read only
within bounds that were checked first; nothing is allocated by a length that was not checked; a checksum that cannot be
computed is never taken for one that matches. The interface with its contracts is ``_core.pyi``; formats: the cluster's
prepare header and the message batch, described in docs/architecture.md, "The stored entry" and "The message batch".

The parts are textual includes, one noun each, so that the compiler sees one unit and inlines across them.
"""

import sys

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

cimport cython

if sys.byteorder != "little":
    raise ImportError("shardsrv reads wire and disk formats in place and needs a little-endian host")

HEADER_SIZE = 256

# Ops, commits, revisions, offsets and timestamps stay below this: signed arithmetic in the deciding rooms is then safe.
FIELD_LIMIT = 1 << 62
cdef uint64_t FIELD_BOUND = <uint64_t>1 << 62

# Hard bound of one entry, header included; the configured limit of a frame is lower (64 MiB).
PREPARE_SIZE_MAX = 256 << 20
cdef uint32_t SIZE_BOUND = 256 << 20

cdef enum:
    V_VALID = 0
    V_SHORT = 1
    V_BAD_HEADER = 2
    V_BAD_BODY = 3
    V_BAD_IDENTITY = 4
    V_BAD_CHAIN = 5
    V_ZERO = 6

VALID = V_VALID
SHORT = V_SHORT
BAD_HEADER = V_BAD_HEADER
BAD_BODY = V_BAD_BODY
BAD_IDENTITY = V_BAD_IDENTITY
BAD_CHAIN = V_BAD_CHAIN
ZERO = V_ZERO

VERDICT_NAMES = ("valid", "short", "bad header", "bad body", "bad identity", "bad chain", "zero")

cdef uint8_t ZEROS[256]
memset(ZEROS, 0, 256)


cdef int all_zero(const uint8_t* at, size_t length) noexcept nogil:
    return memcmp(at, ZEROS, length) == 0


cdef object bytes_view(object data):
    """A read-only one-dimensional view of the bytes of ``data``."""
    cdef object view = memoryview(data)
    if view.ndim != 1 or view.itemsize != 1 or view.format != "B":
        view = view.cast("B")
    return view.toreadonly()


include "_core_hash.pxi"
include "_core_cursor.pxi"
include "_core_batch.pxi"
include "_core_prepare.pxi"
include "_core_log.pxi"
include "_core_poll.pxi"
include "_core_reply.pxi"
