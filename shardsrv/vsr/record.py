"""Base of events and effects: classes with named fields, compared by identity, printed field by field."""


class Record:
    """A subclass names its fields in ``__slots__``."""

    __slots__ = ()

    def __repr__(self) -> str:
        cls = type(self)
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in cls.__slots__)
        return f"{cls.__name__}({fields})"
