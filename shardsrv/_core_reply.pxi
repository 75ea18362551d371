# Reply headers and the key of the deduplication window.
#
# Reply:  0..128 the common prefix (seals zero, command 8) | 128 request_checksum 16 | 144 context 16, zero | 160
# client 16
#        176 op u64 | 184 commit u64 | 192 timestamp u64 | 200 request u64 | 208 operation u8 | 216 status u32 |
#        220..256 zero
# Request (read from): 128 client 16 | 144 request_checksum 16 | 168 request u64.

cdef void write_reply(
    uint8_t* reply, const uint8_t* request, uint32_t status, uint32_t size, uint64_t op, uint64_t commit,
    uint64_t timestamp, uint8_t operation
) noexcept nogil:
    """Fill 256 bytes with all that does not depend on the cluster."""
    memset(reply, 0, HEADER_BYTES)
    store32(reply + AT_SIZE, size)
    reply[AT_COMMAND] = COMMAND_REPLY
    memcpy(reply + 128, request + 144, 16)
    memcpy(reply + 160, request + 128, 16)
    store64(reply + 176, op)
    store64(reply + 184, commit)
    store64(reply + 192, timestamp)
    memcpy(reply + 200, request + 168, 8)
    reply[208] = operation
    store32(reply + 216, status)


cdef int fill_reply(
    uint8_t* reply, object request_header, uint32_t status, uint32_t size, uint64_t op, uint64_t commit,
    uint64_t timestamp, unsigned char operation
) except -1:
    """`write_reply` to a request header in any buffer. Raises `ValueError` for one of another length."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(request_header, &buffer, PyBUF_SIMPLE)
    try:
        if buffer.len != HEADER_BYTES:
            raise ValueError(f"a request header is 256 bytes, not {buffer.len}")
        write_reply(reply, <const uint8_t*>buffer.buf, status, size, op, commit, timestamp, operation)
    finally:
        PyBuffer_Release(&buffer)
    return 0


def pack_reply(
    request_header not None, *, uint32_t status, uint32_t body_length, uint64_t op, uint64_t commit, uint64_t timestamp,
    unsigned char operation, bytes cluster not None, uint32_t view=0, unsigned char replica=0, bytes client=None,
):
    """A 256-byte reply header that echoes request_checksum, request number and, unless given, client of the request."""
    cdef uint8_t reply[HEADER_BYTES]
    if body_length > <uint32_t>0xFFFFFFFF - HEADER_BYTES:
        raise ValueError(f"a body of {body_length} bytes is too long for a frame")
    fill_reply(reply, request_header, status, HEADER_BYTES + body_length, op, commit, timestamp, operation)
    sixteen(cluster, "cluster", reply + AT_CLUSTER)
    store32(reply + AT_VIEW, view)
    reply[AT_REPLICA] = replica
    if client is not None:
        sixteen(client, "client", reply + 160)
    return PyBytes_FromStringAndSize(<const char*>reply, HEADER_BYTES)


cdef bytes reply_frame(
    const uint8_t* request, uint64_t op, uint64_t timestamp, uint8_t operation, bytes cluster, bytes client, bytes body
):
    cdef Py_ssize_t length = len(body)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + length)
    cdef uint8_t* reply = <uint8_t*>PyBytes_AS_STRING(frame)
    write_reply(reply, request, 0, <uint32_t>(HEADER_BYTES + length), op, op, timestamp, operation)
    sixteen(cluster, "cluster", reply + AT_CLUSTER)
    sixteen(client, "client", reply + 160)
    memcpy(reply + HEADER_BYTES, PyBytes_AS_STRING(body), length)
    return frame


cpdef bytes send_reply_body(uint32_t stream, uint32_t topic, uint32_t partition, uint64_t base_offset):
    """u32 1 | u32 stream | u32 topic | u32 partition | u64 base_offset: 24 bytes."""
    cdef uint8_t body[24]
    store32(body, 1)
    store32(body + 4, stream)
    store32(body + 8, topic)
    store32(body + 12, partition)
    store64(body + 16, base_offset)
    return PyBytes_FromStringAndSize(<const char*>body, 24)


cpdef bytes dedup_key(bytes client, uint64_t session, uint8_t operation, uint64_t request, uint64_t digest):
    """41 bytes: client 16 | session 8 | operation 1 | request 8 | digest 8."""
    cdef uint8_t key[41]
    sixteen(client, "client", key)
    store64(key + 16, session)
    key[24] = operation
    store64(key + 25, request)
    store64(key + 33, digest)
    return PyBytes_FromStringAndSize(<const char*>key, 41)
