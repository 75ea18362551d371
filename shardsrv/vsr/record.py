"""Base of events and effects: classes with named fields, compared by identity, printed field by field."""


class Record:
    """A subclass names its fields in ``__slots__``."""

    __slots__ = ()

    def __repr__(self) -> str:
        names: tuple[str, ...] = type(self).__slots__
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}({fields})"
