"""C fields and C calls of the classes of `shardsrv.vsr.plane`, for its compiled form only; the fields are explained there."""

from shardsrv._core cimport Prepare
from shardsrv.vsr.events cimport Request


cdef class Plane:
    cpdef admit(self, Request request)
    cpdef find(self, Request request)
    cpdef tuple prepare(self, Request request, long long op, long long timestamp)
    cpdef bytes apply(self, Prepare prepare)
