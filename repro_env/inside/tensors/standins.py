"""What stands for objects in a pickle (nothing that a pickle names is imported, so nothing of it runs), and kinds of values of ours."""


class Opaque:
    """Stands for an object of a class that is not imported: what it was made of."""

    name = ""

    def __new__(cls, *args: object, **named: object) -> "Opaque":
        made = object.__new__(cls)
        made.__dict__["parts"] = [("args", args), ("named", named)] if named else [("args", args)] if args else []
        return made

    def __setstate__(self, state: object) -> None:
        self.__dict__["parts"].append(("state", state))

    def __setitem__(self, key: object, value: object) -> None:
        self.__dict__["parts"].append(("item", (key, value)))

    def append(self, value: object) -> None:
        self.__dict__["parts"].append(("entry", value))

    def extend(self, values: "list[object]") -> None:
        for value in values:
            self.append(value)

    def add(self, value: object) -> None:
        self.append(value)

    def __hash__(self) -> int:
        return id(self)


_opaques = {}  # type: dict[str, type[Opaque]]


def opaque(name: str) -> "type[Opaque]":
    if name not in _opaques:
        _opaques[name] = type("Opaque", (Opaque,), {"name": name})
    return _opaques[name]


class Ordered(dict):  # type: ignore[type-arg]
    """`collections.OrderedDict`; torch keeps the versions of modules in an attribute of it."""

    name = "collections.OrderedDict"
    state = None  # type: object

    def __init__(self, *args: object) -> None:
        dict.__init__(self)
        if len(args) == 1 and isinstance(args[0], (list, tuple, dict)):
            dict.update(self, args[0])

    def __setstate__(self, state: object) -> None:
        self.state = state


class Default(Ordered):
    """`collections.defaultdict`; what it makes of a key that is not there counts as its state."""

    name = "collections.defaultdict"

    def __init__(self, *args: object) -> None:
        Ordered.__init__(self, *args[1:])
        self.state = args[0] if args else None


class Array(Opaque):
    """`numpy.ndarray` in a pickle: made empty, then given (version, shape, dtype, Fortran order, bytes)."""

    name = "numpy.ndarray"


class Dtype(Opaque):
    """`numpy.dtype`: made of its code, then given (version, byte order, ...)."""

    name = "numpy.dtype"


class Text(str):
    """Says what an object is, as another object's own text does not."""

    __slots__ = ()


class Number(str):
    """A number of JSON, as it is written."""

    __slots__ = ()


class Known:
    """A value, and what a file says of it: `parts`, by the steps that lead to them (see `leaves.Place`)."""

    __slots__ = ("parts", "value")

    def __init__(self, value: object, parts: "dict[str, object]") -> None:
        self.value = value
        self.parts = parts


class Parts(dict):  # type: ignore[type-arg]
    """Things by the steps that lead to them, in the order in which a file has them."""


class Row(dict):  # type: ignore[type-arg]
    """A row of a table, whose columns have the order of the table."""


class Lines(list):  # type: ignore[type-arg]
    """The lines of a text."""


class Order(list):  # type: ignore[type-arg]
    """Names whose order counts."""
