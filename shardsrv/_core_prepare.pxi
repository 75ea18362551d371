# The stored entry: a sealed 256-byte header (layout in _core.pxd) and a body.
#
# Identity (`checksum`): XXH3-64 of the header with bytes 0..16, 52..56 (view) and 236..244 (stored seal) zero. It does
# not change when the entry is sent again in a later view. Stored seal: XXH3-64 of the header with its own 8 bytes
# zero; it covers the view too. Body: the batch checksum for SendMessages, else XXH3-64 of the body, also of an empty
# one; never 0.

cdef uint64_t identity_of(const uint8_t* header) noexcept nogil:
    cdef uint8_t copy[HEADER_BYTES]
    memcpy(copy, header, HEADER_BYTES)
    memset(copy + AT_CHECKSUM, 0, 16)
    memset(copy + AT_VIEW, 0, 4)
    memset(copy + AT_STORED_SEAL, 0, 8)
    return hash64(copy, HEADER_BYTES)


cdef uint64_t stored_seal_of(const uint8_t* header) noexcept nogil:
    cdef uint8_t copy[HEADER_BYTES]
    memcpy(copy, header, HEADER_BYTES)
    memset(copy + AT_STORED_SEAL, 0, 8)
    return hash64(copy, HEADER_BYTES)


cdef bint fields_in_bounds(const uint8_t* header) noexcept nogil:
    """What a sealed header must still obey: one written by a defective or foreign program is not followed."""
    return (
        header[AT_COMMAND] == COMMAND_PREPARE
        and HEADER_BYTES <= load32(header + AT_SIZE) <= SIZE_BOUND
        and 0 < load64(header + AT_OP) < FIELD_BOUND
        and load64(header + AT_COMMIT) < FIELD_BOUND
        and load64(header + AT_TIMESTAMP) < FIELD_BOUND
        and load64(header + AT_REQUEST) < FIELD_BOUND
        and load64(header + AT_CREATED_REVISION) < FIELD_BOUND
        and load64(header + AT_CHECKSUM_BODY) != 0
        and header[AT_OPERATION] != 0
        and header[AT_DURABILITY] <= 1
        and load32(header + AT_BORN_VIEW) <= load32(header + AT_VIEW)
        and load64(header + AT_CHECKSUM + 8) == 0
        and load64(header + AT_CHECKSUM_BODY + 8) == 0
        and load64(header + AT_PARENT + 8) == 0
        and load64(header + AT_SESSION) < FIELD_BOUND
        and all_zero(header + AT_RESERVED, AT_CLIENT - AT_RESERVED)
        and all_zero(header + AT_PADDING, AT_GROUP - AT_PADDING)
        and all_zero(header + AT_TAIL, HEADER_BYTES - AT_TAIL)
    )


cdef int verify_header(const uint8_t* header, size_t available, bint check_identity) noexcept nogil:
    if available < HEADER_BYTES:
        return V_SHORT
    if load64(header + AT_STORED_SEAL) != stored_seal_of(header):
        return V_ZERO if all_zero(header, HEADER_BYTES) else V_BAD_HEADER
    if not fields_in_bounds(header):
        return V_BAD_HEADER
    if check_identity and load64(header + AT_CHECKSUM) != identity_of(header):
        return V_BAD_IDENTITY
    return V_VALID


cdef int verify_body(const uint8_t* header, const uint8_t* body, size_t length) noexcept nogil:
    cdef BatchWalk walk
    cdef int code
    cdef uint64_t expected = load64(header + AT_CHECKSUM_BODY)
    if header[AT_OPERATION] != OPERATION_SEND_MESSAGES:
        return V_VALID if hash64(body, length) == expected else V_BAD_BODY
    code = verify_batch(body, length, &walk)
    if code == OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    return V_VALID if code == 0 and walk.digest == expected else V_BAD_BODY


cdef int verify_entry(const uint8_t* header, size_t available, bint check_body) noexcept nogil:
    cdef int verdict = verify_header(header, available, True)
    cdef uint32_t size
    if verdict != V_VALID:
        return verdict
    size = load32(header + AT_SIZE)
    if available < size:
        return V_SHORT
    return verify_body(header, header + HEADER_BYTES, size - HEADER_BYTES) if check_body else V_VALID


cdef int verify_entry_released(const uint8_t* header, size_t available, bint check_body) except -2:
    """`verify_entry`, without the interpreter when it takes long. Raises `MemoryError` instead of OUT_OF_MEMORY."""
    cdef int verdict
    if check_body and available > GIL_RELEASE_BYTES and load32(header + AT_SIZE) > GIL_RELEASE_BYTES:
        with nogil:
            verdict = verify_entry(header, available, check_body)
    else:
        verdict = verify_entry(header, available, check_body)
    if verdict == OUT_OF_MEMORY:
        raise MemoryError("no memory to gather the checksums of a batch")
    return verdict


cdef int raise_damaged(int verdict, Py_ssize_t position, const uint8_t* header, size_t available) except -1:
    """Raise `shardsrv.errors.Damaged` for a verdict that is not VALID. Imported late: `errors` must not be needed to
    load this."""
    from shardsrv.errors import Damaged

    known = available >= HEADER_BYTES and verdict in (V_BAD_BODY, V_BAD_IDENTITY)
    op = load64(header + AT_OP) if known else None
    raise Damaged(offset=position, op=op, expected="a valid entry", found=VERDICT_NAMES[verdict])


cdef size_t reach(const Py_buffer* buffer, Py_ssize_t position) except? 0:
    """Bytes from ``position`` to the end of the buffer. Raises `ValueError` for a position outside it."""
    if position < 0 or position > buffer.len:
        raise ValueError(f"position {position} is outside a buffer of {buffer.len} bytes")
    return buffer.len - position


cdef void seal(uint8_t* header) noexcept nogil:
    store64(header + AT_STORED_SEAL, stored_seal_of(header))


cdef int set_view(uint8_t* header, uint32_t view) except -1:
    if view < load32(header + AT_BORN_VIEW):
        raise ValueError(f"view {view} is before the view {load32(header + AT_BORN_VIEW)} that the entry was born in")
    store32(header + AT_VIEW, view)
    seal(header)
    return 0


cdef int sixteen(bytes value, str name, uint8_t* at) except -1:
    if len(value) != 16:
        raise ValueError(f"{name} must be 16 bytes, not {len(value)}")
    memcpy(at, PyBytes_AS_STRING(value), 16)
    return 0


cdef Prepare load_header(object data, Py_ssize_t position, bint accept_repair):
    """A prepare without its body; with ``accept_repair`` the command of a RepairPrepare is put back. Raises
    `Damaged`."""
    cdef Prepare prepare = Prepare.__new__(Prepare)
    cdef Py_buffer buffer
    cdef size_t available
    cdef int verdict
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        available = reach(&buffer, position)
        memcpy(prepare.raw, <const uint8_t*>buffer.buf + position, min(available, <size_t>HEADER_BYTES))
    finally:
        PyBuffer_Release(&buffer)
    if accept_repair and prepare.raw[AT_COMMAND] == COMMAND_REPAIR_PREPARE:
        prepare.raw[AT_COMMAND] = COMMAND_PREPARE
    verdict = verify_header(prepare.raw, available, True)
    if verdict != V_VALID:
        raise_damaged(verdict, position, prepare.raw, available)
    return prepare.adopted()


@cython.final
@cython.no_gc  # refers to a buffer and nothing else: keeps thousands of live entries out of the collector
@cython.freelist(64)
cdef class Prepare:
    """One log entry: a sealed 256-byte header and a body that stays where it is. Immutable."""

    def __init__(self):
        raise TypeError("a Prepare is made by build, load, load_parts or load_header")

    cdef int hold(self, object source, size_t offset, size_t length) except -1:
        """Take the buffer that contains the body at ``offset``; ``length`` bytes must lie there (the caller
        checked)."""
        PyObject_GetBuffer(source, &self.held, PyBUF_SIMPLE)
        if offset + length > <size_t>self.held.len:
            raise ValueError("the buffer became smaller")
        self.source = source
        self.body_data = <const uint8_t*>self.held.buf + offset
        self.body_offset = offset
        self.body_length = length
        return 0

    def __dealloc__(self):
        if self.held.buf != NULL:
            PyBuffer_Release(&self.held)

    @staticmethod
    def build(
        *, bytes cluster not None, uint32_t view, unsigned char replica, bytes client not None, uint64_t parent,
        uint64_t request_checksum, uint64_t op, uint64_t commit, uint64_t timestamp, uint64_t request,
        unsigned char operation, uint64_t group, uint32_t user_id, uint64_t created_revision, unsigned char durability,
        body not None, uint64_t checksum_body,
        uint64_t request_checksum_high=0,
    ):
        """Make and seal a prepare. Raises `ValueError` or `OverflowError` for a field out of its bounds."""
        cdef PrepareMould mould = PrepareMould(cluster, replica, group, created_revision)
        return mould.make(
            view, client, request_checksum_high, parent, request_checksum, op, commit, timestamp, request, operation,
            user_id, durability, body, checksum_body,
        )

    cdef Prepare adopted(self):
        """This entry, its header complete: the C fields are taken from there."""
        self.op = load64(self.raw + AT_OP)
        self.timestamp = load64(self.raw + AT_TIMESTAMP)
        self.checksum = load64(self.raw + AT_CHECKSUM)
        self.size = load32(self.raw + AT_SIZE)
        self.operation = self.raw[AT_OPERATION]
        self.durability = self.raw[AT_DURABILITY]
        if self.operation == OPERATION_SEND_MESSAGES and self.body_length >= HEADER_BYTES:
            self.base_offset = load64(self.body_data + AT_BATCH_BASE_OFFSET)
            self.message_count = load32(self.body_data + AT_BATCH_COUNT)
        return self

    @staticmethod
    def load(data not None, Py_ssize_t position=0):
        """Read the entry at ``position`` without copying its body. Raises `shardsrv.errors.Damaged` unless it is
        VALID."""
        cdef Prepare prepare = Prepare.__new__(Prepare)
        cdef const uint8_t* header
        cdef size_t available
        cdef int verdict
        prepare.hold(data, 0, 0)
        available = reach(&prepare.held, position)
        header = <const uint8_t*>prepare.held.buf + position
        verdict = verify_entry_released(header, available, True)
        if verdict != V_VALID:
            raise_damaged(verdict, position, header, available)
        memcpy(prepare.raw, header, HEADER_BYTES)
        prepare.body_data = header + HEADER_BYTES
        prepare.body_offset = position + HEADER_BYTES
        prepare.body_length = load32(header + AT_SIZE) - HEADER_BYTES
        return prepare.adopted()

    @staticmethod
    def load_parts(header not None, body not None, bint check_body=True):
        """As `load`, for a header and a body that lie apart; the body must have exactly the length that the header
        says. The header of a RepairPrepare (byte 60 = 19, seals those of the prepare) is taken too and becomes that of
        the prepare."""
        cdef Prepare prepare = load_header(header, 0, True)
        cdef uint32_t length = load32(prepare.raw + AT_SIZE) - HEADER_BYTES
        cdef int verdict = V_VALID
        PyObject_GetBuffer(body, &prepare.held, PyBUF_SIMPLE)
        prepare.source = body
        prepare.body_data = <const uint8_t*>prepare.held.buf
        prepare.body_length = prepare.held.len
        if prepare.body_length != length:
            raise_damaged(V_SHORT if prepare.body_length < length else V_BAD_BODY, 0, prepare.raw, HEADER_BYTES)
        if check_body:
            if length > GIL_RELEASE_BYTES:
                with nogil:
                    verdict = verify_body(prepare.raw, prepare.body_data, length)
            else:
                verdict = verify_body(prepare.raw, prepare.body_data, length)
        if verdict == OUT_OF_MEMORY:
            raise MemoryError("no memory to gather the checksums of a batch")
        if verdict != V_VALID:
            raise_damaged(verdict, 0, prepare.raw, HEADER_BYTES)
        return prepare.adopted()

    @staticmethod
    def load_header(data not None, Py_ssize_t position=0):
        """The header at ``position`` alone (``has_body`` is false, ``size`` still counts the body). Raises `Damaged`
        unless VALID."""
        return load_header(data, position, False)

    @staticmethod
    def verify(data not None, Py_ssize_t position=0, bint check_body=True):
        """The verdict for the bytes at ``position``. Raises only `ValueError`, for a position outside ``data``."""
        cdef Py_buffer buffer
        cdef size_t available
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        try:
            available = reach(&buffer, position)
            return verify_entry_released(<const uint8_t*>buffer.buf + position, available, check_body)
        finally:
            PyBuffer_Release(&buffer)

    @staticmethod
    def verify_header(data not None, Py_ssize_t position=0):
        """The verdict for 256 bytes at ``position`` alone: VALID, SHORT, ZERO, BAD_HEADER or BAD_IDENTITY."""
        cdef Py_buffer buffer
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        try:
            return verify_header(<const uint8_t*>buffer.buf + position, reach(&buffer, position), True)
        finally:
            PyBuffer_Release(&buffer)

    def restamped(self, uint32_t view, bint repair=False):
        """The header as sent in ``view``: identity unchanged, stored seal made again; ``repair`` gives it the command
        of a RepairPrepare. Raises `ValueError` for a view before the one it was born in."""
        cdef uint8_t copy[HEADER_BYTES]
        memcpy(copy, self.raw, HEADER_BYTES)
        set_view(copy, view)
        if repair:
            copy[AT_COMMAND] = COMMAND_REPAIR_PREPARE
        return PyBytes_FromStringAndSize(<const char*>copy, HEADER_BYTES)

    def with_view(self, uint32_t view):
        """The same entry, same body, with its header as in ``view``; ``with_view(born_view)`` is the form that is
        stored."""
        cdef Prepare other
        if load32(self.raw + AT_VIEW) == view:
            return self
        other = Prepare.__new__(Prepare)
        memcpy(other.raw, self.raw, HEADER_BYTES)
        set_view(other.raw, view)
        if self.held.buf != NULL:
            other.hold(self.source, self.body_offset, self.body_length)
        return other.adopted()

    def __repr__(self):
        return f"Prepare(op={self.op}, view={self.view}, operation={self.operation}, {self.size} bytes)"

    def __eq__(self, other):
        """Equal when all 256 header bytes are: the header seals the body."""
        if not isinstance(other, Prepare):
            return NotImplemented
        return memcmp(self.raw, (<Prepare>other).raw, HEADER_BYTES) == 0

    def __hash__(self):
        return hash(load64(self.raw + AT_CHECKSUM))

    def __reduce__(self):
        raise TypeError("a Prepare is not pickled: its header and body travel as bytes")

    @property
    def header(self):
        return memoryview(PyBytes_FromStringAndSize(<const char*>self.raw, HEADER_BYTES))

    @property
    def body(self):
        if self.held.buf == NULL:
            return memoryview(b"")
        return bytes_view(self.source)[self.body_offset:self.body_offset + self.body_length]

    @property
    def has_body(self):
        return self.held.buf != NULL

    @property
    def checksum_body(self):
        return load64(self.raw + AT_CHECKSUM_BODY)

    @property
    def cluster(self):
        return PyBytes_FromStringAndSize(<const char*>self.raw + AT_CLUSTER, 16)

    @property
    def view(self):
        return load32(self.raw + AT_VIEW)

    @property
    def replica(self):
        return self.raw[AT_REPLICA]

    @property
    def client(self):
        return PyBytes_FromStringAndSize(<const char*>self.raw + AT_CLIENT, 16)

    @property
    def parent(self):
        return load64(self.raw + AT_PARENT)

    @property
    def request_checksum(self):
        return load64(self.raw + AT_REQUEST_CHECKSUM)

    @property
    def request_checksum_high(self):
        """The session of the client that asked: the upper half of the field."""
        return load64(self.raw + AT_SESSION)

    @property
    def commit(self):
        return load64(self.raw + AT_COMMIT)

    @property
    def request(self):
        return load64(self.raw + AT_REQUEST)

    @property
    def group(self):
        return load64(self.raw + AT_GROUP)

    @property
    def user_id(self):
        return load32(self.raw + AT_USER_ID)

    @property
    def created_revision(self):
        return load64(self.raw + AT_CREATED_REVISION)

    @property
    def stored_seal(self):
        return load64(self.raw + AT_STORED_SEAL)

    @property
    def born_view(self):
        return load32(self.raw + AT_BORN_VIEW)


@cython.final
cdef class PrepareMould:
    """What all entries have in common that one member makes for one group."""

    def __cinit__(self, bytes cluster not None, unsigned char replica, uint64_t group, uint64_t created_revision):
        memset(self.header, 0, HEADER_BYTES)
        sixteen(cluster, "cluster", self.header + AT_CLUSTER)
        self.header[AT_COMMAND] = COMMAND_PREPARE
        self.header[AT_REPLICA] = replica
        store64(self.header + AT_GROUP, group)
        store64(self.header + AT_CREATED_REVISION, created_revision)

    cpdef Prepare make(
        self, uint32_t view, bytes client, uint64_t session, uint64_t parent, uint64_t request_checksum, uint64_t op,
        uint64_t commit, uint64_t timestamp, uint64_t request, uint8_t operation, uint32_t user_id, uint8_t durability,
        object body, uint64_t checksum_body
    ):
        cdef Prepare prepare = Prepare.__new__(Prepare)
        cdef uint8_t* header = prepare.raw
        cdef size_t length
        prepare.hold(body, 0, 0)
        length = prepare.held.len
        if length > SIZE_BOUND - HEADER_BYTES:
            raise ValueError(f"a body of {length} bytes is too long for an entry")
        prepare.body_length = length
        memcpy(header, self.header, HEADER_BYTES)
        store64(header + AT_CHECKSUM_BODY, checksum_body)
        store32(header + AT_SIZE, HEADER_BYTES + <uint32_t>length)
        store32(header + AT_VIEW, view)
        sixteen(client, "client", header + AT_CLIENT)
        store64(header + AT_PARENT, parent)
        store64(header + AT_REQUEST_CHECKSUM, request_checksum)
        store64(header + AT_SESSION, session)
        store64(header + AT_OP, op)
        store64(header + AT_COMMIT, commit)
        store64(header + AT_TIMESTAMP, timestamp)
        store64(header + AT_REQUEST, request)
        header[AT_OPERATION] = operation
        store32(header + AT_USER_ID, user_id)
        store32(header + AT_BORN_VIEW, view)
        header[AT_DURABILITY] = durability
        if not fields_in_bounds(header):
            raise ValueError("a field is out of bounds (2**62, op 0, operation 0, durability, checksum_body 0)")
        store64(header + AT_CHECKSUM, identity_of(header))
        seal(header)
        return prepare.adopted()
