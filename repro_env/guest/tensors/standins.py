"""Stand-ins for the objects of a pickle, whose classes are never imported, and types for the values that the readers return."""


class Opaque:
    """Stand-in for an object: the arguments, state and items from which it was built."""

    name = ""

    def __new__(cls, *args: object, **named: object) -> "Opaque":
        instance = object.__new__(cls)
        instance.__dict__["parts"] = [("args", args), ("named", named)] if named else [("args", args)] if args else []
        return instance

    def __setstate__(self, state: object) -> None:
        self.__dict__["parts"].append(("state", state))

    def __setitem__(self, key: object, value: object) -> None:
        self.__dict__["parts"].append(("item", (key, value)))

    def append(self, value: object) -> None:
        self.__dict__["parts"].append(("entry", value))

    def __hash__(self) -> int:
        return id(self)


_opaques = {}  # type: dict[str, type[Opaque]]


def stand_in(name: str, base: "type[Opaque]" = Opaque) -> "type[Opaque]":
    """The stand-in class for the class or function of this name."""
    if name not in _opaques:
        _opaques[name] = type("Opaque", (base,), {"name": name})
    return _opaques[name]


class Path(Opaque):
    """A path of `pathlib`: its parts are joined."""

    def __new__(cls, *parts: object) -> "Path":
        texts = [part for part in parts if isinstance(part, str)]
        return Opaque.__new__(cls, *(["/".join(texts).replace("//", "/", 1)] if len(texts) == len(parts) else parts))  # type: ignore[return-value]


class Datetime(Opaque):
    """`datetime.datetime`: its ten bytes are a text, and a time zone may follow."""

    name = "datetime.datetime"

    def __new__(cls, data: object, *zone: object) -> "Datetime":
        if isinstance(data, bytes) and len(data) == 10:
            fold = " (again)" if data[2] > 127 else ""
            fields = (int.from_bytes(data[:2], "big"), data[2] & 127, *data[3:7], int.from_bytes(data[7:], "big"))
            data = "%04d-%02d-%02d %02d:%02d:%02d.%06d" % fields + fold
        return Opaque.__new__(cls, data, *zone)  # type: ignore[return-value]


class Ordered(dict):  # type: ignore[type-arg]
    """`collections.OrderedDict`, with its attributes: torch keeps the versions of modules there."""

    name = "collections.OrderedDict"
    state = None  # type: object

    def __init__(self, *args: object) -> None:
        dict.__init__(self)
        if len(args) == 1 and isinstance(args[0], (list, tuple, dict)):
            dict.update(self, args[0])

    def __setstate__(self, state: object) -> None:
        self.state = state


class Default(Ordered):
    """`collections.defaultdict`, with the default factory as its state."""

    name = "collections.defaultdict"

    def __init__(self, *args: object) -> None:
        Ordered.__init__(self, *args[1:])
        self.state = args[0] if args else None


class Array(Opaque):
    """`numpy.ndarray`. Its state is (version, shape, dtype, Fortran order, bytes)."""

    name = "numpy.ndarray"


class Dtype(Opaque):
    """`numpy.dtype`. Its argument is its code, its state is (version, byte order, ...)."""

    name = "numpy.dtype"


class Text(str):
    """A text that describes an object. It differs from the same text in the file."""

    __slots__ = ()


class Number(str):
    """A number of JSON, as it is written in the file."""

    __slots__ = ()


class WithFacts:
    """A value, and facts about it by step (see `leaves.Place`)."""

    __slots__ = ("facts", "value")

    def __init__(self, value: object, facts: "dict[str, object]") -> None:
        self.value = value
        self.facts = facts


class Parts(dict):  # type: ignore[type-arg]
    """Values by step, in their order in the file."""


class Row(dict):  # type: ignore[type-arg]
    """A row of a table. The order of its columns is that of the table."""


class Lines(list):  # type: ignore[type-arg]
    """The lines of a text."""


class Order(list):  # type: ignore[type-arg]
    """Steps of which the order is compared."""
