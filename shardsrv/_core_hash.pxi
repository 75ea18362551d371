# XXH3-64 and XXH32, seed 0. The xxhash package's own extension exports the C functions; they are looked up once, at
# import, in the library that is already loaded, and called without the interpreter. A candidate is taken only if it
# agrees with the published value for the empty string and with the package's Python call over lengths of every code
# path. SHARDSRV_XXHASH=python forces the Python call, which also serves where the symbols are hidden.

import os

import xxhash

from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_READ


cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* path, int flags)
    void* dlsym(void* handle, const char* name)
    int RTLD_NOW
    int RTLD_NOLOAD

cdef extern from "Python.h" nogil:
    void Py_FatalError(const char* message)

ctypedef uint64_t (*hash64_function)(const void*, size_t) noexcept nogil
ctypedef uint32_t (*hash32_function)(const void*, size_t, uint32_t) noexcept nogil

cdef hash64_function hash64_chosen = NULL
cdef hash32_function hash32_chosen = NULL

cdef uint64_t XXH3_OF_NOTHING = 0x2D06800538D394C2ULL
cdef uint32_t XXH32_OF_NOTHING = 0x02CC5D05U


cdef uint64_t hash64(const void* data, size_t length) noexcept nogil:
    return hash64_chosen(data, length)


cdef uint32_t hash32(const void* data, size_t length) noexcept nogil:
    return hash32_chosen(data, length, 0)


cdef uint64_t hash64_by_python(const void* data, size_t length) noexcept with gil:
    try:
        return xxhash.xxh3_64_intdigest(PyMemoryView_FromMemory(<char*>data, length, PyBUF_READ) if length else b"")
    except BaseException:
        # A hash that could not be computed must not look like one: there is no caller that could be told.
        Py_FatalError("shardsrv: XXH3 failed")
    return 0


cdef uint32_t hash32_by_python(const void* data, size_t length, uint32_t seed) noexcept with gil:
    try:
        return xxhash.xxh32_intdigest(PyMemoryView_FromMemory(<char*>data, length, PyBUF_READ) if length else b"", seed)
    except BaseException:
        Py_FatalError("shardsrv: XXH32 failed")
    return 0


cdef bint hash64_agrees(hash64_function candidate, const uint8_t* sample):
    """Compare with the Python call at lengths of every branch of the algorithm, aligned and not."""
    cdef size_t length
    if candidate(NULL, 0) != XXH3_OF_NOTHING:
        return False
    for length in (1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 256, 1024, 1025, 4095):
        if candidate(sample, length) != hash64_by_python(sample, length):
            return False
        if candidate(sample + 1, length) != hash64_by_python(sample + 1, length):
            return False
    return True


cdef bint hash32_agrees(hash32_function candidate, const uint8_t* sample):
    cdef size_t length
    if candidate(NULL, 0, 0) != XXH32_OF_NOTHING:
        return False
    for length in (1, 4, 15, 16, 17, 1023):
        if candidate(sample, length, 0) != hash32_by_python(sample, length, 0):
            return False
    return True


cdef str choose_hashes():
    """Set both function pointers; returns the name of the XXH3 variant in use."""
    global hash64_chosen, hash32_chosen
    cdef void* library
    cdef void* found
    cdef bytes path, symbol
    cdef bytes pattern = bytes((index * 131 + (index >> 3)) & 0xFF for index in range(4096))
    cdef const uint8_t* sample = <const uint8_t*>PyBytes_AS_STRING(pattern)
    hash64_chosen = hash64_by_python
    hash32_chosen = hash32_by_python
    if not hash64_agrees(hash64_chosen, sample) or not hash32_agrees(hash32_chosen, sample):
        raise ImportError("the xxhash package computes wrong values")
    if os.environ.get("SHARDSRV_XXHASH") == "python":
        return "python"
    path = os.fsencode(getattr(sys.modules.get("xxhash._xxhash"), "__file__", None) or "")
    library = dlopen(path, RTLD_NOW | RTLD_NOLOAD) if path else NULL
    if library == NULL:
        return "python"
    found = dlsym(library, b"XXH32")
    if found != NULL and hash32_agrees(<hash32_function>found, sample):
        hash32_chosen = <hash32_function>found
    for symbol in (b"XXH3_64bits_dispatch", b"XXH3_64bits"):
        found = dlsym(library, symbol)
        if found != NULL and hash64_agrees(<hash64_function>found, sample):
            hash64_chosen = <hash64_function>found
            return symbol.decode()
    return "python"


HASH_BACKEND = choose_hashes()


def xxh3(data):
    """XXH3-64, seed 0, of the whole buffer."""
    cdef Py_buffer buffer
    cdef uint64_t value
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    if buffer.len > GIL_RELEASE_BYTES:
        with nogil:
            value = hash64(buffer.buf, buffer.len)
    else:
        value = hash64(buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)
    return value


def xxh32(data):
    """XXH32, seed 0, of the whole buffer."""
    cdef Py_buffer buffer
    cdef uint32_t value
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    if buffer.len > GIL_RELEASE_BYTES:
        with nogil:
            value = hash32(buffer.buf, buffer.len)
    else:
        value = hash32(buffer.buf, buffer.len)
    PyBuffer_Release(&buffer)
    return value
