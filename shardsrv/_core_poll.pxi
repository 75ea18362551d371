# What a poll sends: batches selected from prepares back to back, as buffers in order.

@cython.final
cdef class PollSlice:
    """What `slice_prepares` selected, and where and why it stopped."""

    cdef readonly list parts
    cdef readonly uint64_t count
    cdef readonly uint64_t bytes
    cdef readonly uint64_t first_offset
    cdef readonly uint64_t last_offset
    cdef readonly Py_ssize_t position
    cdef readonly size_t needed
    cdef readonly int verdict

    def __repr__(self):
        return f"PollSlice({VERDICT_NAMES[self.verdict]}, {self.count} from {self.first_offset}, needed={self.needed})"


cdef struct Selection:
    uint64_t offset                   # lowest offset wanted, or lowest base_timestamp
    bint by_time
    bint check


cdef int entry_verdict(const uint8_t* header, size_t available, bint check) noexcept nogil:
    """Verdict of a header that is to be stepped over; without ``check`` only that its size can be followed."""
    if check:
        return verify_header(header, available, False)
    if available < HEADER_BYTES:
        return V_SHORT
    if header[AT_COMMAND] != COMMAND_PREPARE or not (HEADER_BYTES <= load32(header + AT_SIZE) <= SIZE_BOUND):
        return V_ZERO if all_zero(header, HEADER_BYTES) else V_BAD_HEADER
    return V_VALID


cdef int select_frames(
    const uint8_t* header, size_t length, const Selection* selection, uint64_t wanted, BatchWalk* walk
) noexcept nogil:
    """Choose the frames of one stored batch of ``length`` bytes and check them: afterwards ``first..until`` and their
    byte range.

    ``first == until`` when none qualifies. Returns VALID, BAD_BODY or OUT_OF_MEMORY. With checks on, the batch
    checksum is compared for a batch that is skipped too: its base offset decided that.
    """
    cdef const uint8_t* batch = header + HEADER_BYTES
    cdef uint64_t base, count, skipped = 0
    cdef int code
    if length < HEADER_BYTES or load64(batch + AT_BATCH_LENGTH) != length:
        return V_BAD_BODY
    count = load32(batch + AT_BATCH_COUNT)
    base = load64(batch + AT_BATCH_BASE_OFFSET)
    if count == 0 or base >= FIELD_BOUND:
        return V_BAD_BODY
    if selection.by_time:
        skipped = count if load64(batch + AT_BATCH_BASE_TIMESTAMP) < selection.offset else 0
    elif selection.offset > base:
        skipped = min(selection.offset - base, count)
    walk.first = <uint32_t>skipped
    walk.until = <uint32_t>(skipped + min(wanted, count - skipped))
    walk.start = HEADER_BYTES
    walk.stop = length
    if not selection.check and (walk.first == walk.until or (walk.first == 0 and walk.until == count)):
        return V_VALID
    code = walk_batch(batch, length, selection.check, walk)
    if code == OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    if code != 0:
        return V_BAD_BODY
    if selection.check and (
        walk.digest != load64(batch + AT_BATCH_CHECKSUM) or walk.digest != load64(header + AT_CHECKSUM_BODY)
    ):
        return V_BAD_BODY
    return V_VALID


cdef bytes cut_header(const uint8_t* batch, const BatchWalk* walk):
    """The batch header of the selected frames only: new batch_length, batch_checksum and message_count, all else
    unchanged."""
    cdef uint8_t copy[HEADER_BYTES]
    memcpy(copy, batch, HEADER_BYTES)
    store64(copy + AT_BATCH_LENGTH, HEADER_BYTES + walk.stop - walk.start)
    store64(copy + AT_BATCH_CHECKSUM, walk.cut_digest)
    store32(copy + AT_BATCH_COUNT, walk.until - walk.first)
    return PyBytes_FromStringAndSize(<const char*>copy, HEADER_BYTES)


cdef int append_selected(
    PollSlice slice, object view, const uint8_t* batch, Py_ssize_t at, size_t length, const BatchWalk* walk
) except -1:
    """Add the selected frames of the batch at ``at`` of ``view`` to the parts."""
    cdef uint64_t base = load64(batch + AT_BATCH_BASE_OFFSET)
    if walk.first == 0 and walk.until == load32(batch + AT_BATCH_COUNT):
        slice.parts.append(view[at:at + length])
        slice.bytes += length
    else:
        slice.parts.append(cut_header(batch, walk))
        slice.parts.append(view[at + walk.start:at + walk.stop])
        slice.bytes += HEADER_BYTES + walk.stop - walk.start
    if slice.count == 0:
        slice.first_offset = base + walk.first
    slice.last_offset = base + walk.until - 1
    slice.count += walk.until - walk.first
    return 0


cdef int fill_slice(
    PollSlice slice, object view, const uint8_t* data, Py_ssize_t end, const Selection* selection, uint64_t count,
    uint64_t committed_op
) except -1:
    cdef const uint8_t* header
    cdef size_t available, length
    cdef BatchWalk walk
    cdef int verdict
    cdef bint whole
    while slice.count < count:
        available = end - slice.position
        header = data + slice.position
        verdict = entry_verdict(header, available, selection.check)
        if verdict == V_SHORT:
            slice.needed = HEADER_BYTES
            return 0
        if verdict != V_VALID:
            slice.verdict = verdict
            return 0
        if load64(header + AT_OP) > committed_op:
            return 0
        if available < load32(header + AT_SIZE):
            slice.needed = load32(header + AT_SIZE)
            return 0
        length = load32(header + AT_SIZE) - HEADER_BYTES
        whole = True
        if header[AT_OPERATION] == OPERATION_SEND_MESSAGES:
            if length > GIL_RELEASE_BYTES:
                with nogil:
                    verdict = select_frames(header, length, selection, count - slice.count, &walk)
            else:
                verdict = select_frames(header, length, selection, count - slice.count, &walk)
            if verdict == OUT_OF_MEMORY:
                raise MemoryError("no memory to gather the checksums of a batch")
            if verdict != V_VALID:
                slice.verdict = verdict
                return 0
            if walk.first != walk.until:
                append_selected(slice, view, header + HEADER_BYTES, slice.position + HEADER_BYTES, length, &walk)
                whole = walk.until == load32(header + HEADER_BYTES + AT_BATCH_COUNT)
        if whole:
            slice.position += HEADER_BYTES + length
        if load64(header + AT_OP) == committed_op:
            return 0
    return 0


def slice_prepares(
    data not None, Py_ssize_t position, Py_ssize_t end, uint64_t offset, uint64_t count, uint64_t committed_op,
    bint by_time=False, bint check=True,
):
    """Select up to ``count`` messages with offset >= ``offset`` (``by_time``: base_timestamp >= ``offset``) in
    ``data[position:end]``, never beyond ``committed_op``. Raises `ValueError` for a range outside ``data``; damage is
    a verdict, not an exception."""
    cdef Py_buffer buffer
    cdef PollSlice slice = PollSlice.__new__(PollSlice)
    cdef Selection selection
    selection.offset = offset
    selection.by_time = by_time
    selection.check = check
    slice.parts = []
    slice.position = position
    slice.verdict = V_VALID
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if position < 0 or end < position or end > buffer.len:
            raise ValueError(f"{position}..{end} is not a range of a buffer of {buffer.len} bytes")
        fill_slice(slice, bytes_view(data), <const uint8_t*>buffer.buf, end, &selection, count, committed_op)
    finally:
        PyBuffer_Release(&buffer)
    return slice
