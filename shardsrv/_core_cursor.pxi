# The bounded reader. Invariants: 0 <= at <= held.len; a read that fails consumes nothing.

class Truncated(Exception):
    """Fewer bytes left than asked for: ``needed`` wanted at ``position``, ``left`` there. Nothing was consumed."""

    def __init__(self, position: int, needed: int, left: int) -> None:
        super().__init__(position, needed, left)
        self.position = position
        self.needed = needed
        self.left = left

    def __str__(self) -> str:
        return f"{self.needed} bytes wanted at {self.position}, {self.left} left"


@cython.final
cdef class Cursor:
    """Bounded little-endian reader over a buffer."""

    cdef Py_buffer held
    cdef object source
    cdef Py_ssize_t at

    def __cinit__(self, data not None):
        PyObject_GetBuffer(data, &self.held, PyBUF_SIMPLE)
        self.source = data
        self.at = 0

    def __dealloc__(self):
        if self.held.buf != NULL:
            PyBuffer_Release(&self.held)

    cdef const uint8_t* advance(self, Py_ssize_t length) except NULL:
        """The bytes read, which are then consumed; raises `Truncated`."""
        cdef const uint8_t* start
        if length > self.held.len - self.at:
            raise Truncated(self.at, length, self.held.len - self.at)
        start = <const uint8_t*>self.held.buf + self.at
        self.at += length
        return start

    @property
    def position(self):
        return self.at

    @position.setter
    def position(self, Py_ssize_t value):
        if value < 0 or value > self.held.len:
            raise Truncated(value, 0, 0)
        self.at = value

    @property
    def remaining(self):
        return self.held.len - self.at

    def u8(self):
        return self.advance(1)[0]

    def u16(self):
        cdef const uint8_t* start = self.advance(2)
        return start[0] | (<uint32_t>start[1] << 8)

    def u32(self):
        return load32(self.advance(4))

    def u64(self):
        return load64(self.advance(8))

    def u128(self):
        cdef const uint8_t* start = self.advance(16)
        cdef uint64_t high = load64(start + 8)
        cdef object low = load64(start)
        return (<object>high << 64) | low if high else low

    def f32(self):
        cdef float value
        memcpy(&value, self.advance(4), 4)
        return value

    def take(self, Py_ssize_t length):
        """The next ``length`` bytes as a read-only view. Raises `Truncated`, also for a negative length."""
        if length < 0 or length > self.held.len - self.at:
            raise Truncated(self.at, length, self.held.len - self.at)
        cdef object view = bytes_view(self.source)[self.at:self.at + length]
        self.at += length
        return view

    def rest(self):
        """Everything that is left as a read-only view."""
        return self.take(self.held.len - self.at)
