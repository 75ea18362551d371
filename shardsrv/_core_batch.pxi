# The message batch: a 256-byte header (layout in _core.pxd) and frames back to back.
#
# Frame:  0 u64 checksum, XXH3-64 of the frame from byte 8 to its end | 8 u128 id | 24 u32 offset_delta | 28 u32
# timestamp_delta
#        32 u32 user_headers_length | 36 u32 payload_length | 40 u64 zero | 48 payload | user headers
# Batch checksum: XXH3-64 of header bytes 0..40, header bytes 48..52, then bytes 0..8 of each frame in order. Bodies
# are bound through the frame checksums, so a batch holds only if both levels hold.

cdef enum:
    CODE_LAYOUT = 3                   # InvalidCommand
    CODE_FRAME_CHECKSUM = 4027        # InvalidMessageChecksum
    CODE_BATCH_CHECKSUM = 4039        # InvalidBatchChecksum
    GATHER_FIELDS = 44                # batch header bytes under the batch checksum
    GATHER_STACK = 4096               # a batch of up to 506 messages needs no allocation


class BatchRefused(Exception):
    """A batch that is not stored: the protocol's ``code``, a ``reason``, and the byte ``offset`` in the buffer that
    was checked."""

    def __init__(self, code: int, reason: str, offset: int = 0) -> None:
        super().__init__(code, reason, offset)
        self.code = code
        self.reason = reason
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.reason} (code {self.code}, byte {self.offset})"


cdef inline int refuse(BatchWalk* walk, int code, size_t offset, const char* reason) noexcept nogil:
    walk.offset = offset
    walk.reason = reason
    return code


cdef int walk_batch_header(const uint8_t* batch, size_t length, BatchWalk* walk) noexcept nogil:
    """Returns 0 or CODE_LAYOUT; afterwards message_count is at least 1 and not more than `length` has room for."""
    cdef uint32_t count
    if length < HEADER_BYTES:
        return refuse(walk, CODE_LAYOUT, 0, "the batch is shorter than its header")
    if load64(batch + AT_BATCH_LENGTH) != length:
        return refuse(walk, CODE_LAYOUT, AT_BATCH_LENGTH, "batch_length is not the length of the batch")
    if not all_zero(batch + AT_BATCH_RESERVED, HEADER_BYTES - AT_BATCH_RESERVED):
        return refuse(walk, CODE_LAYOUT, AT_BATCH_RESERVED, "reserved bytes of the batch header are not zero")
    count = load32(batch + AT_BATCH_COUNT)
    if count == 0:
        return refuse(walk, CODE_LAYOUT, AT_BATCH_COUNT, "message_count is zero")
    if count > (length - HEADER_BYTES) // FRAME_HEADER_BYTES:
        return refuse(walk, CODE_LAYOUT, AT_BATCH_COUNT, "message_count is more than the batch has room for")
    return 0


cdef int walk_frames(
    const uint8_t* batch, size_t length, bint check, uint8_t* checksums, BatchWalk* walk
) noexcept nogil:
    """Returns 0, CODE_LAYOUT or CODE_FRAME_CHECKSUM; `checksums` has room for message_count values."""
    cdef uint32_t index, count = load32(batch + AT_BATCH_COUNT)
    cdef size_t position = HEADER_BYTES
    cdef uint64_t frame_length
    cdef const uint8_t* frame
    for index in range(count):
        if index == walk.first:
            walk.start = position
        if length - position < FRAME_HEADER_BYTES:
            return refuse(walk, CODE_LAYOUT, position, "the batch ends inside a message header")
        frame = batch + position
        frame_length = <uint64_t>FRAME_HEADER_BYTES + load32(frame + 32) + load32(frame + 36)
        if frame_length > length - position:
            return refuse(walk, CODE_LAYOUT, position, "the lengths of a message reach beyond the batch")
        if load64(frame + 40) != 0:
            return refuse(walk, CODE_LAYOUT, position + 40, "reserved bytes of a message header are not zero")
        if check and walk.first <= index < walk.until and hash64(frame + 8, frame_length - 8) != load64(frame):
            return refuse(walk, CODE_FRAME_CHECKSUM, position, "a message does not match its checksum")
        memcpy(checksums + <size_t>8 * index, frame, 8)
        position += frame_length
        if index + 1 == walk.until:
            walk.stop = position
    if position != length:
        return refuse(walk, CODE_LAYOUT, position, "bytes are left behind the last message")
    return 0


cdef int walk_batch(const uint8_t* batch, size_t length, bint check, BatchWalk* walk) noexcept nogil:
    cdef uint8_t stack[GATHER_STACK]
    cdef uint8_t* gathered = stack
    cdef uint8_t* fields
    cdef size_t needed
    cdef uint32_t selected
    cdef int code = walk_batch_header(batch, length, walk)
    if code != 0:
        return code
    walk.until = min(walk.until, load32(batch + AT_BATCH_COUNT))
    walk.first = min(walk.first, walk.until)
    walk.start = walk.stop = HEADER_BYTES
    needed = GATHER_FIELDS + <size_t>8 * load32(batch + AT_BATCH_COUNT)
    if needed > GATHER_STACK:
        gathered = <uint8_t*>malloc(needed)
        if gathered == NULL:
            return OUT_OF_MEMORY
    code = walk_frames(batch, length, check, gathered + GATHER_FIELDS, walk)
    if code == 0:
        memcpy(gathered, batch, 40)
        memcpy(gathered + 40, batch + AT_BATCH_COUNT, 4)
        walk.digest = hash64(gathered, needed)
        walk.cut_digest = walk.digest
        selected = walk.until - walk.first
        if <size_t>8 * selected + GATHER_FIELDS != needed:
            # The header fields of the smaller batch go in front of its first checksum: the others are no longer needed.
            fields = gathered + <size_t>8 * walk.first
            memcpy(fields, batch, 32)
            store64(fields + 32, HEADER_BYTES + walk.stop - walk.start)
            store32(fields + 40, selected)
            walk.cut_digest = hash64(fields, GATHER_FIELDS + <size_t>8 * selected)
    if gathered != stack:
        free(gathered)
    return code


cdef int verify_batch(const uint8_t* batch, size_t length, BatchWalk* walk) noexcept nogil:
    cdef int code
    walk.first = 0
    walk.until = <uint32_t>0xFFFFFFFF
    code = walk_batch(batch, length, True, walk)
    if code == 0 and walk.digest != load64(batch + AT_BATCH_CHECKSUM):
        return refuse(walk, CODE_BATCH_CHECKSUM, AT_BATCH_CHECKSUM, "the batch does not match its checksum")
    return code


cdef int verify_batch_released(const uint8_t* batch, size_t length, BatchWalk* walk) noexcept:
    """`verify_batch`, without the interpreter when it takes long."""
    cdef int code
    if length > GIL_RELEASE_BYTES:
        with nogil:
            code = verify_batch(batch, length, walk)
        return code
    return verify_batch(batch, length, walk)


cdef int raise_refused(int code, const BatchWalk* walk, size_t base) except -1:
    """Raise what a code of `walk_batch` stands for; returns 0 when it is 0."""
    if code == 0:
        return 0
    if code == OUT_OF_MEMORY:
        raise MemoryError("no memory to gather the checksums of a batch")
    raise BatchRefused(code, walk.reason.decode(), base + walk.offset)


@cython.final
cdef class SendTarget:
    """The part of a send request before the batch, and what the check of the batch found."""

    def __repr__(self):
        return f"SendTarget(key={self.key!r}, messages={self.message_count}, bytes={self.batch_length})"


cdef Py_ssize_t parse_identifier(const uint8_t* body, Py_ssize_t position, Py_ssize_t end) except -1:
    """Position behind a stream or topic identifier (u8 kind, u8 length, value). Raises `BatchRefused`."""
    cdef Py_ssize_t length, index
    if end - position < 2:
        raise BatchRefused(CODE_LAYOUT, "the metadata ends inside an identifier", position)
    length = body[position + 1]
    if length > end - position - 2:
        raise BatchRefused(CODE_LAYOUT, "an identifier reaches beyond the metadata", position)
    if body[position] == 1:
        if length != 4:
            raise BatchRefused(CODE_LAYOUT, "a numeric identifier is not 4 bytes long", position)
    elif body[position] == 2:
        if length == 0:
            raise BatchRefused(CODE_LAYOUT, "a name is empty", position)
        for index in range(position + 2, position + 2 + length):
            if body[index] >= 0x80:
                try:
                    PyUnicode_DecodeUTF8(<const char*>body + position + 2, length, NULL)
                except UnicodeDecodeError:
                    raise BatchRefused(CODE_LAYOUT, "a name is not UTF-8", position) from None
                break
    else:
        raise BatchRefused(CODE_LAYOUT, "an identifier is of an unknown kind", position)
    return position + 2 + length


cdef Py_ssize_t parse_partitioning(const uint8_t* body, Py_ssize_t position, Py_ssize_t end) except -1:
    """Position behind the partitioning (u8 kind, u8 length, value). Raises `BatchRefused`."""
    cdef Py_ssize_t length
    if end - position < 2:
        raise BatchRefused(CODE_LAYOUT, "the metadata ends inside the partitioning", position)
    length = body[position + 1]
    if length > end - position - 2:
        raise BatchRefused(CODE_LAYOUT, "the partitioning reaches beyond the metadata", position)
    if not (
        (body[position] == 1 and length == 0)
        or (body[position] == 2 and length == 4)
        or (body[position] == 3 and length > 0)
    ):
        raise BatchRefused(CODE_LAYOUT, "the partitioning is of an unknown kind or length", position)
    return position + 2 + length


cdef SendTarget parse_send_buffer(const uint8_t* body, Py_ssize_t length):
    cdef SendTarget target = SendTarget.__new__(SendTarget)
    cdef Py_ssize_t position, end
    cdef const uint8_t* batch
    cdef BatchWalk walk
    cdef uint32_t declared
    if length < 4:
        raise BatchRefused(CODE_LAYOUT, "the body is shorter than its metadata length", 0)
    if load32(body) > length - 4:
        raise BatchRefused(CODE_LAYOUT, "the metadata reaches beyond the body", 0)
    end = 4 + <Py_ssize_t>load32(body)
    position = parse_identifier(body, 4, end)
    position = parse_identifier(body, position, end)
    position = parse_partitioning(body, position, end)
    if end - position != 4:
        raise BatchRefused(CODE_LAYOUT, "the metadata is not used up by its fields", position)
    declared = load32(body + position)
    batch = body + end
    raise_refused(verify_batch_released(batch, length - end, &walk), &walk, end)
    target.message_count = load32(batch + AT_BATCH_COUNT)
    if declared != target.message_count:
        raise BatchRefused(CODE_LAYOUT, "messages_count is not the message_count of the batch", position)
    target.key = PyBytes_FromStringAndSize(<const char*>body + 4, position - 4)
    target.batch_offset = end
    target.batch_length = length - end
    target.digest = walk.digest
    target.origin_timestamp = load64(batch + AT_BATCH_ORIGIN_TIMESTAMP)
    return target


def parse_send(body not None):
    """Check a send body whole and find its batch: u32 metadata_length | stream | topic | partitioning | u32
    messages_count | batch.

    Raises `BatchRefused`.
    """
    cdef Py_buffer buffer
    PyObject_GetBuffer(body, &buffer, PyBUF_SIMPLE)
    try:
        return parse_send_buffer(<const uint8_t*>buffer.buf, buffer.len)
    finally:
        PyBuffer_Release(&buffer)


cpdef uint64_t stamp_batch(object batch, uint64_t partition_id, uint64_t base_offset, uint64_t base_timestamp) except? 0:
    """Write the server's three fields in place and make the batch checksum again; returns it. Hashes no message.

    Raises `BatchRefused` (3, the bytes are then unchanged), `ValueError` for an offset or a time of 2**62 and more,
    `BufferError` for a read-only buffer.
    """
    cdef Py_buffer buffer
    cdef BatchWalk walk
    cdef uint8_t before[24]
    cdef uint8_t* header
    cdef int code
    if base_offset >= FIELD_BOUND or base_timestamp >= FIELD_BOUND:
        raise ValueError("base_offset and base_timestamp must be below 2**62")
    PyObject_GetBuffer(batch, &buffer, PyBUF_WRITABLE)
    try:
        header = <uint8_t*>buffer.buf
        if buffer.len < HEADER_BYTES:
            raise BatchRefused(CODE_LAYOUT, "the batch is shorter than its header", 0)
        memcpy(before, header, 24)
        store64(header + AT_BATCH_PARTITION, partition_id)
        store64(header + AT_BATCH_BASE_OFFSET, base_offset)
        store64(header + AT_BATCH_BASE_TIMESTAMP, base_timestamp)
        walk.first = 0
        walk.until = <uint32_t>0xFFFFFFFF
        code = walk_batch(header, buffer.len, False, &walk)
        if code != 0:
            memcpy(header, before, 24)
            raise_refused(code, &walk, 0)
        store64(header + AT_BATCH_CHECKSUM, walk.digest)
        return walk.digest
    finally:
        PyBuffer_Release(&buffer)


cpdef uint32_t batch_count(object batch) except? 0:
    """The messages that a batch says it has. Raises `BatchRefused` for fewer bytes than a batch header."""
    cdef Py_buffer buffer
    cdef uint32_t count = 0
    PyObject_GetBuffer(batch, &buffer, PyBUF_SIMPLE)
    if buffer.len >= HEADER_BYTES:
        count = load32(<const uint8_t*>buffer.buf + AT_BATCH_COUNT)
    PyBuffer_Release(&buffer)
    if buffer.len < HEADER_BYTES:
        raise BatchRefused(CODE_LAYOUT, "the batch is shorter than its header", 0)
    return count


def check_batch(batch not None):
    """0 when every length and checksum of the batch holds, else the code (3, 4027, 4039). Raises nothing for bad
    bytes."""
    cdef Py_buffer buffer
    cdef BatchWalk walk
    cdef int code
    PyObject_GetBuffer(batch, &buffer, PyBUF_SIMPLE)
    code = verify_batch_released(<const uint8_t*>buffer.buf, buffer.len, &walk)
    PyBuffer_Release(&buffer)
    if code == OUT_OF_MEMORY:
        raise MemoryError("no memory to gather the checksums of a batch")
    return code
