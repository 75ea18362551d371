"""C names of the compiled core for the other extensions: byte access, hashes, the prepare object, entry checks.

Byte layouts are little-endian on the wire, on disk and on the host (`_core` refuses to load on any other host), so a
field is read with one unaligned load. Nothing declared here raises; the contract of each function says what it returns.
"""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy


cdef enum:
    HEADER_BYTES = 256
    FRAME_HEADER_BYTES = 48           # header of one message inside a batch
    OPERATION_SEND_MESSAGES = 160
    COMMAND_REQUEST = 5
    COMMAND_PREPARE = 6
    COMMAND_REPLY = 8
    COMMAND_REPAIR_PREPARE = 19
    GIL_RELEASE_BYTES = 65536         # hashing more than this lets other threads run
    OUT_OF_MEMORY = -1                # beside the verdicts and codes: a gather buffer could not be had

# The stored entry: common prefix (0..128), then the prepare's own fields. Unnamed bytes are zero.
cdef enum:
    AT_CHECKSUM = 0                   # u64 identity, upper half of the 16 bytes zero
    AT_CHECKSUM_BODY = 16             # u64, upper half zero
    AT_CLUSTER = 32                   # 16 bytes
    AT_SIZE = 48                      # u32, header and body
    AT_VIEW = 52                      # u32
    AT_RELEASE = 56                   # u32
    AT_COMMAND = 60                   # u8
    AT_REPLICA = 61                   # u8
    AT_RESERVED = 62                  # 66 zero bytes
    AT_CLIENT = 128                   # 16 bytes
    AT_PARENT = 144                   # u64, upper half zero
    AT_REQUEST_CHECKSUM = 160         # u64 digest of the request
    AT_SESSION = 168                  # u64 session of the client that asked: the upper half of request_checksum
    AT_OP = 176                       # u64
    AT_COMMIT = 184                   # u64
    AT_TIMESTAMP = 192                # u64 microseconds
    AT_REQUEST = 200                  # u64
    AT_OPERATION = 208                # u8
    AT_PADDING = 209                  # 7 zero bytes
    AT_GROUP = 216                    # u64
    AT_USER_ID = 224                  # u32
    AT_CREATED_REVISION = 228         # u64
    AT_STORED_SEAL = 236              # u64
    AT_BORN_VIEW = 244                # u32
    AT_DURABILITY = 248               # u8
    AT_TAIL = 249                     # 7 zero bytes

# The header of a message batch. Bytes 52..256 are zero.
cdef enum:
    AT_BATCH_PARTITION = 0            # u64
    AT_BATCH_BASE_OFFSET = 8          # u64
    AT_BATCH_BASE_TIMESTAMP = 16      # u64 microseconds
    AT_BATCH_ORIGIN_TIMESTAMP = 24    # u64 microseconds
    AT_BATCH_LENGTH = 32              # u64, header included
    AT_BATCH_CHECKSUM = 40            # u64
    AT_BATCH_COUNT = 48               # u32
    AT_BATCH_RESERVED = 52            # 204 zero bytes


cdef inline uint32_t load32(const uint8_t* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t load64(const uint8_t* at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline void store32(uint8_t* at, uint32_t value) noexcept nogil:
    memcpy(at, &value, 4)


cdef inline void store64(uint8_t* at, uint64_t value) noexcept nogil:
    memcpy(at, &value, 8)


# XXH3-64 and XXH32, seed 0, of `length` bytes (`data` may be NULL when it is 0). Never fail; callable without the
# interpreter. When the C symbols are missing they take the interpreter themselves, and lack of memory there ends the
# process.
cdef uint64_t hash64(const void* data, size_t length) noexcept nogil
cdef uint32_t hash32(const void* data, size_t length) noexcept nogil

# 1 when all `length` (at most 256) bytes are zero, else 0.
cdef int all_zero(const uint8_t* at, size_t length) noexcept nogil


cdef struct BatchWalk:
    uint32_t first                    # in: frames first..until (clipped to the batch) are selected
    uint32_t until
    size_t start                      # out: byte range of the selected frames in the batch
    size_t stop
    uint64_t digest                   # out: the batch checksum computed over the header and all frames
    uint64_t cut_digest               # out: the batch checksum of a batch of the selected frames only
    size_t offset                     # out, on refusal: the byte where it was found
    const char* reason                # out, on refusal: a sentence

# Walk a batch of exactly `length` bytes: layout always, frame checksums of the selected frames when `check`. Returns
# 0, a code (3 layout, 4027 frame checksum) with `offset` and `reason` set, or OUT_OF_MEMORY. Does not compare `digest`
# with the header.
cdef int walk_batch(const uint8_t* batch, size_t length, bint check, BatchWalk* walk) noexcept nogil

# The whole batch: `walk_batch` over all frames with checks, and the checksum in its header (4039). Returns as
# `walk_batch`.
cdef int verify_batch(const uint8_t* batch, size_t length, BatchWalk* walk) noexcept nogil

# The two seals of a 256-byte prepare header, computed (not read).
cdef uint64_t identity_of(const uint8_t* header) noexcept nogil
cdef uint64_t stored_seal_of(const uint8_t* header) noexcept nogil

# Verdict of a header (bounds, reserved bytes, stored seal; with `check_identity` the identity too): VALID, SHORT
# (fewer than 256 bytes), ZERO, BAD_HEADER, BAD_IDENTITY.
cdef int verify_header(const uint8_t* header, size_t available, bint check_identity) noexcept nogil

# Verdict of a body of `length` bytes against its header: VALID, BAD_BODY, or OUT_OF_MEMORY.
cdef int verify_body(const uint8_t* header, const uint8_t* body, size_t length) noexcept nogil

# Verdict of the entry at `header`; also SHORT when `available` is less than its size, or OUT_OF_MEMORY.
cdef int verify_entry(const uint8_t* header, size_t available, bint check_body) noexcept nogil


# Header and body of the reply to a write that took effect as entry `op`, to the 256-byte header of its request. Raises
# `ValueError` unless cluster and client are 16 bytes.
cdef bytes reply_frame(
    const uint8_t* request, uint64_t op, uint64_t timestamp, uint8_t operation, bytes cluster, bytes client, bytes body
)


cdef class SendTarget:
    cdef readonly bytes key
    cdef readonly Py_ssize_t batch_offset
    cdef readonly Py_ssize_t batch_length
    cdef readonly uint32_t message_count
    cdef readonly uint64_t digest
    cdef readonly uint64_t origin_timestamp

# Check a send body of `length` bytes whole and find its batch. Raises `BatchRefused`.
cdef SendTarget parse_send_buffer(const uint8_t* body, Py_ssize_t length)

cpdef uint64_t stamp_batch(object batch, uint64_t partition_id, uint64_t base_offset, uint64_t base_timestamp) except? 0
cpdef bytes send_reply_body(uint32_t stream, uint32_t topic, uint32_t partition, uint64_t base_offset)
cpdef uint32_t batch_count(object batch) except? 0
cpdef bytes dedup_key(bytes client, uint64_t session, uint8_t operation, uint64_t request, uint64_t digest)


cdef class Prepare:
    cdef unsigned char raw[256]       # the header
    # Fields that are read again and again, as C fields: `adopted` takes them from the header. Signed where they are below
    # 2**62: what decides subtracts them.
    cdef readonly int64_t op
    cdef readonly int64_t timestamp   # microseconds
    cdef readonly uint64_t checksum   # the identity
    cdef readonly uint32_t size       # header and body
    cdef readonly uint8_t operation
    cdef readonly uint8_t durability
    cdef readonly int64_t base_offset      # of the batch of a SendMessages entry whose body is here, else 0
    cdef readonly uint32_t message_count
    cdef Py_buffer held               # the buffer that contains the body; held.buf is NULL before one is taken
    cdef object source                # the object that exports it
    cdef const uint8_t* body_data
    cdef size_t body_offset           # of the body in the held buffer
    cdef size_t body_length

    cdef int hold(self, object source, size_t offset, size_t length) except -1
    cdef Prepare adopted(self)


cdef class PrepareMould:
    cdef uint8_t header[256]

    cpdef Prepare make(
        self, uint32_t view, bytes client, uint64_t session, uint64_t parent, uint64_t request_checksum, uint64_t op,
        uint64_t commit, uint64_t timestamp, uint64_t request, uint8_t operation, uint32_t user_id, uint8_t durability,
        object body, uint64_t checksum_body
    )
