"""C fields and C calls of the classes of `shardsrv.vsr.plane`, for its compiled form only; the fields are explained there."""

from shardsrv.vsr.events cimport Request


cdef class Plane:
    cpdef admit(self, Request request)
    cpdef find(self, Request request)
    cpdef prepare(self, Request request, op, timestamp)
    cpdef apply(self, prepare)
