# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""One received request frame, where it lies in the arena, and the budget that received bytes are charged to.

Invariants: a frame is complete; its bytes stay where they were received until the frame and every view of it are gone,
and only then does the budget get them back. What every request is looked at for is read once, when the frame is made.

Source of the layout: the request header, 256 bytes, of the client protocol. Fields read here, by offset:
    48  u32 size      60  u8 command     128 16 client    144 u128 request_checksum    160 u64 timestamp
    168 u64 request   176 u8 operation   184 u64 session  196 u32 command code (operation 2)
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint64_t

from shardsrv._core cimport SendTarget, parse_send_buffer, reply_frame
from shardsrv.bus._arena cimport Buffer, window

cdef enum:
    HEADER = 256


@cython.final
cdef class Ingress:
    """Bytes received and not yet dropped, against `limit`."""

    def __cinit__(self, size_t limit):
        self.limit = limit


@cython.no_gc
@cython.freelist(256)
@cython.final
cdef class Frame:
    """One complete request frame. See `_frame.pyi` for the attributes."""

    def __init__(self):
        raise TypeError("frames are made by the reactor")

    def __dealloc__(self):
        if self.ingress is not None:
            self.ingress.release(self.size)

    @property
    def code(self):
        return load_u32(self.data + 196)

    @property
    def client(self):
        return PyBytes_FromStringAndSize(<char*>self.data + 128, 16)

    @property
    def request_checksum(self):
        return load_u64(self.data + 144)

    @property
    def request_checksum_high(self):
        return load_u64(self.data + 152)

    @property
    def timestamp(self):
        return load_u64(self.data + 160)

    @property
    def header(self):
        return window(self, self.data, HEADER, True)

    @property
    def body(self):
        return window(self, self.data + HEADER, <Py_ssize_t>(self.size - HEADER), False)

    @property
    def whole(self):
        return window(self, self.data, <Py_ssize_t>self.size, True)

    @property
    def body_offset(self):
        return self.owner.offset + <size_t>(self.data - self.owner.address) + HEADER

    cpdef object body_from(self, size_t offset):
        if offset > self.size - HEADER:
            raise ValueError(f"offset {offset} lies outside a body of {self.size - HEADER} bytes")
        return window(self, self.data + HEADER + offset, <Py_ssize_t>(self.size - HEADER - offset), False)

    cpdef SendTarget parse_send(self):
        return parse_send_buffer(self.data + HEADER, <Py_ssize_t>(self.size - HEADER))

    cpdef bytes committed_reply(
        self, uint64_t op, uint64_t timestamp, uint8_t operation, bytes cluster, bytes client, bytes body
    ):
        return reply_frame(self.data, op, timestamp, operation, cluster, client, body)

    def __repr__(self):
        return (
            f"<Frame connection={self.connection:#x} command={self.command} operation={self.operation}"
            f" request={self.request} size={self.size}>"
        )


cdef Frame new_frame(Ingress ingress, Buffer owner, uint8_t* data, size_t size, uint64_t connection):
    """A frame over bytes that are charged to `ingress` already."""
    cdef Frame made = Frame.__new__(Frame)
    made.ingress = ingress
    made.owner = owner
    made.data = data
    made.size = size
    made.connection = connection
    made.command = data[60]
    made.operation = data[176]
    made.request = load_u64(data + 168)
    made.session = load_u64(data + 184)
    return made
