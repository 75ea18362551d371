"""Linux calls of the reactor: epoll, sockets, vectored writes."""

from libc.stdint cimport uint32_t, uint64_t
from posix.time cimport timespec

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL
    uint32_t EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR, EPOLLET
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll, epoll_event* events, int count, int timeout_ms)

cdef extern from * nogil:
    """
    #include <sys/epoll.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    #ifndef SYS_epoll_pwait2
    #define SYS_epoll_pwait2 441
    #endif
    static int wait_precisely(int epoll, struct epoll_event *events, int count, const struct timespec *limit) {
        return (int)syscall(SYS_epoll_pwait2, epoll, events, count, limit, (void *)0, (size_t)0);
    }
    """
    int wait_precisely(int epoll, epoll_event* events, int count, timespec* limit)

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    struct sockaddr:
        unsigned short sa_family
    struct sockaddr_storage:
        unsigned short ss_family
    struct msghdr:
        void* msg_name
        socklen_t msg_namelen
        iovec* msg_iov
        size_t msg_iovlen
        void* msg_control
        size_t msg_controllen
        int msg_flags
    int AF_INET, AF_INET6, SOL_SOCKET, SO_DOMAIN, SHUT_WR
    int MSG_DONTWAIT, MSG_NOSIGNAL, MSG_TRUNC
    ssize_t recv(int fd, void* data, size_t length, int flags)
    ssize_t send(int fd, const void* data, size_t length, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int shutdown(int fd, int how)
    int getpeername(int fd, sockaddr* address, socklen_t* length)
    int getsockopt(int fd, int level, int name, void* value, socklen_t* length)
    int setsockopt(int fd, int level, int name, const void* value, socklen_t length)

cdef extern from "<netinet/in.h>" nogil:
    struct in_addr:
        uint32_t s_addr
    struct in6_addr:
        unsigned char s6_addr[16]
    struct sockaddr_in:
        unsigned short sin_port
        in_addr sin_addr
    struct sockaddr_in6:
        unsigned short sin6_port
        in6_addr sin6_addr
    int IPPROTO_TCP
    unsigned short ntohs(unsigned short value)

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY, TCP_QUICKACK

cdef extern from "<arpa/inet.h>" nogil:
    const char* inet_ntop(int family, const void* address, char* text, socklen_t size)
