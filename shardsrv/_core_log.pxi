# A chunk of a segment walked: entries back to back, each VALID and chained on the one before.

cdef struct LogWalk:
    size_t position                   # start of the entry that is looked at next
    uint64_t parent                   # identity of the entry before it
    uint64_t next_op                  # op it must have
    uint64_t timestamp                # of the entry before it, 0 if none was walked
    uint64_t count                    # entries walked
    size_t needed                     # with SHORT: bytes wanted from `position` on


cdef int walk_log(const uint8_t* data, size_t length, bint check_body, uint64_t limit, LogWalk* walk) noexcept nogil:
    """Walk up to ``limit`` entries. Returns VALID at the end of the data or at the limit, else the verdict of the
    entry at ``position`` (a broken chain is told before a short body), or OUT_OF_MEMORY."""
    cdef const uint8_t* header
    cdef size_t available
    cdef uint32_t size
    cdef uint64_t walked = 0
    cdef int verdict
    while walk.position < length and walked < limit:
        header = data + walk.position
        available = length - walk.position
        walk.needed = HEADER_BYTES
        verdict = verify_header(header, available, True)
        if verdict != V_VALID:
            return verdict
        if load64(header + AT_OP) != walk.next_op or load64(header + AT_PARENT) != walk.parent:
            return V_BAD_CHAIN
        size = load32(header + AT_SIZE)
        walk.needed = size
        if available < size:
            return V_SHORT
        if check_body:
            verdict = verify_body(header, header + HEADER_BYTES, size - HEADER_BYTES)
            if verdict != V_VALID:
                return verdict
        walk.parent = load64(header + AT_CHECKSUM)
        walk.timestamp = load64(header + AT_TIMESTAMP)
        walk.next_op += 1
        walk.position += size
        walk.count += 1
        walked += 1
    return V_VALID


@cython.final
cdef class LogScan:
    """Result of `scan_log`. To go on with the next chunk, pass ``last_checksum`` and ``last_op + 1``."""

    cdef readonly int verdict
    cdef readonly size_t position
    cdef readonly uint64_t first_op
    cdef readonly uint64_t last_op
    cdef readonly uint64_t last_checksum
    cdef readonly uint64_t last_timestamp
    cdef readonly uint64_t count
    cdef readonly size_t needed

    def __repr__(self):
        return f"LogScan({VERDICT_NAMES[self.verdict]}, position={self.position}, ops={self.first_op}..{self.last_op})"


def scan_log(
    data not None, Py_ssize_t position, uint64_t parent, uint64_t next_op, on_prepare=None, bint check_body=True
):
    """Walk prepares back to back; ``on_prepare(prepare, position)`` for each valid one. Raises `ValueError` for a
    position outside ``data`` or a ``next_op`` that is 0 or out of bounds, and what the callback raises."""
    cdef Py_buffer buffer
    cdef LogWalk walk
    cdef LogScan scan = LogScan.__new__(LogScan)
    cdef Prepare prepare
    cdef size_t start
    cdef int verdict = V_VALID
    if next_op == 0 or next_op >= FIELD_BOUND:
        raise ValueError("next_op must be at least 1 and below 2**62")
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        reach(&buffer, position)
        memset(&walk, 0, sizeof(walk))
        walk.position = position
        walk.parent = parent
        walk.next_op = next_op
        if on_prepare is None:
            with nogil:
                verdict = walk_log(<const uint8_t*>buffer.buf, buffer.len, check_body, <uint64_t>1 << 62, &walk)
        else:
            while verdict == V_VALID and walk.position < <size_t>buffer.len:
                start = walk.position
                if check_body and buffer.len - start > GIL_RELEASE_BYTES:
                    with nogil:
                        verdict = walk_log(<const uint8_t*>buffer.buf, buffer.len, check_body, 1, &walk)
                else:
                    verdict = walk_log(<const uint8_t*>buffer.buf, buffer.len, check_body, 1, &walk)
                if verdict == V_VALID:
                    prepare = Prepare.__new__(Prepare)
                    memcpy(prepare.raw, <const uint8_t*>buffer.buf + start, HEADER_BYTES)
                    prepare.hold(data, start + HEADER_BYTES, walk.position - start - HEADER_BYTES)
                    on_prepare(prepare.adopted(), start)
    finally:
        PyBuffer_Release(&buffer)
    if verdict == OUT_OF_MEMORY:
        raise MemoryError("no memory to gather the checksums of a batch")
    scan.verdict = verdict
    scan.position = walk.position
    scan.first_op = next_op if walk.count else 0
    scan.last_op = walk.next_op - 1
    scan.last_checksum = walk.parent
    scan.last_timestamp = walk.timestamp
    scan.count = walk.count
    scan.needed = walk.needed if verdict == V_SHORT else 0
    return scan
