"""One received request frame. Types of ``_frame.pyx``."""

from shardsrv._core import SendTarget

class Ingress:
    """Bytes received and not yet dropped, against a limit."""

    @property
    def bytes(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def releases(self) -> int: ...
    def __init__(self, limit: int) -> None: ...

class Frame:
    """One complete request frame. The body stays in the arena buffer that it was received into, until the frame and all
    views of it are dropped. Made by the reactor only.
    """

    @property
    def connection(self) -> int:
        """Slot | generation << 32."""
    @property
    def size(self) -> int:
        """Whole frame, header included."""
    @property
    def command(self) -> int:
        """Header byte 60."""
    @property
    def operation(self) -> int:
        """Header byte 176."""
    @property
    def code(self) -> int:
        """Header u32 at 196: the command code when operation is 2."""
    @property
    def request(self) -> int: ...
    @property
    def session(self) -> int: ...
    @property
    def client(self) -> bytes:
        """16 bytes."""
    @property
    def request_checksum(self) -> int:
        """Low 64 bits; `request_checksum_high` tells whether the upper half is zero."""
    @property
    def request_checksum_high(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def header(self) -> memoryview:
        """256 bytes, read-only."""
    @property
    def body(self) -> memoryview:
        """``size`` - 256 bytes, WRITABLE (a batch is stamped where it lies). At a multiple of 8 unless it was
        pipelined.
        """
    @property
    def whole(self) -> memoryview:
        """Header and body, read-only."""
    @property
    def body_offset(self) -> int:
        """Offset of the body in the arena: what a lane descriptor carries."""
    def body_from(self, offset: int) -> memoryview:
        """The body from byte ``offset`` on, writable as `body` is. Raises `ValueError` for one behind its end."""
    def parse_send(self) -> SendTarget:
        """`_core.parse_send` of the body. Raises `BatchRefused`."""
    def committed_reply(
        self, op: int, timestamp: int, operation: int, cluster: bytes, client: bytes, body: bytes
    ) -> bytes:
        """Header and body of the reply to this request, a write that took effect as entry ``op``, in one bytes object;
        ``commit`` is ``op``. ``cluster`` and ``client`` 16 bytes."""
