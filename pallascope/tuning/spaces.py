"""`configurations`: the configurations of a space, and what is near what in it.

The model. A space is one of three things:

=============================  =====================================================================
a dict of ranges               every combination of their values, the last range fastest; a
                               configuration is the dict `{name: value}`, and the kernel
                               `kernel_of(**config)`
an iterable of configurations  each as it comes: a dict as above, or one value that can be hashed,
                               as a frozen dataclass, whose kernel is `kernel_of(config)`
an order                       `Ranked`: configurations as they are likely to be fast, too many to
                               simulate each, so their order is taken for the simulation's
=============================  =====================================================================

A configuration that comes twice counts once. Not covered: ranges that depend on each other, for
which the iterable is.

What is near a configuration differs from it in one thing. In a `Ranked` space a thing can be a
group of fields that are changed together, as the sides of a tile.
"""

import collections
import dataclasses
import inspect
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

#: What a space has: a dict, or a value that can be hashed, whose type its owner knows.
type Config = Any
#: A function of a configuration that returns the kernel: a function of the arguments.
KernelOf = Callable[..., Callable[..., object]]


class Ranked(NamedTuple):
    """Configurations in an order of the caller's, and what a search changes together.

    Attributes:
      configs: the configurations, the likeliest first.
      groups: names of the fields that are changed together; without any, each is by itself.
      shapes: how many of the groups, from the first on, the search begins with all values of.
      follows: names of the fields that may change with those of the first group.

    Example:
      >>> def kernel_of(slots, rows):
      ...     return functools.partial(softmax, slots=slots, rows=rows)
      >>> x = jax.ShapeDtypeStruct((256, 512), jnp.float32)
      >>> order = tuning.Ranked([dict(slots=3, rows=2), dict(slots=2, rows=2)])
      >>> tuning.search(kernel_of, order, x, measure=0, progress=False).best.config
      {'slots': 3, 'rows': 2}
    """

    configs: Sequence[Config]
    groups: Sequence[Sequence[str]] = ()
    shapes: int = 0
    follows: Sequence[str] = ()


#: The most configurations of a space. To trace as many takes a day.
MOST = 1_000_000

#: A dict of ranges, or an iterable of configurations; `Ranked` is one too.
Space = Mapping[str, Iterable[object]] | Iterable[object]


class Values(dict[str, object]):
    """A configuration of named values, which can be a key; nobody changes it."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(repr(sorted(self.items())))


def configurations(kernel_of: KernelOf, space: Space) -> list[Config]:
    """The configurations of a space, each once.

    Args:
      kernel_of: what is called with them.
      space: as in the module's docstring.

    Raises:
      TypeError: no function, no space, or a name that `kernel_of` does not take.
      ValueError: there is no configuration, or over `MOST`, or a range is empty.
    """
    if not callable(kernel_of):
        raise TypeError(
            f"search: kernel_of is of type {type(kernel_of).__name__}, so it makes no kernel: give"
            " a function of a configuration that returns the kernel."
        )
    if isinstance(space, str) or not isinstance(cast(object, space), Iterable):
        raise TypeError(
            f"search: the space is of type {type(space).__name__}, which has no configurations:"
            " give a dict of ranges, as dict(slots=[2, 3]), or an iterable of configurations."
        )
    if isinstance(space, Ranked):
        _check_ranked(space)
    if isinstance(space, Mapping):
        found = _product(cast("Mapping[str, Iterable[object]]", space))
    else:
        found = space.configs if isinstance(space, Ranked) else space
    taken = _counted("the space has", "configurations", found)
    unique = list(dict.fromkeys(map(_checked, taken)))
    if not unique:
        raise ValueError("search: the space has 0 configurations, so there is nothing to rank.")
    _check_names(kernel_of, unique[0])
    return unique


def _check_ranked(space: Ranked) -> None:
    """Raises TypeError or ValueError for an order whose parts are not as `Ranked` says."""
    for name, value in zip(Ranked._fields, space, strict=True):
        if name != "shapes" and (isinstance(value, str) or not isinstance(value, Sequence)):
            raise TypeError(
                f"search: {name} of Ranked is of type {type(value).__name__}: give a list of"
                f" {'configurations' if name == 'configs' else 'names of fields'}."
            )
    shapes = cast(object, space.shapes)
    if not isinstance(shapes, int) or not 0 <= shapes <= len(space.groups):
        raise ValueError(
            f"search: {shapes=} of Ranked is not 0 to {len(space.groups)}, the number"
            " of its groups, of which it says how many come first."
        )


def _product(ranges: Mapping[str, Iterable[object]]) -> Iterable[Values]:
    """Every combination of the ranges' values."""
    values: dict[str, list[object]] = {}
    for name, found in ranges.items():
        if isinstance(found, str) or not isinstance(cast(object, found), Iterable):
            raise TypeError(
                f"search: the range of {name} is of type {type(found).__name__}, not a list of"
                f" values: write {name}=[{found!r}] for a single one."
            )
        values[name] = _counted(f"the range of {name} has", "values", found)
        if not values[name]:
            raise ValueError(
                f"search: the range of {name} has 0 values, so the space has 0 configurations:"
                " give it 1 at least."
            )
    return (Values(zip(values, each)) for each in itertools.product(*values.values()))


def _counted[T](who: str, what: str, found: Iterable[T]) -> list[T]:
    """A list of what was found, of which there may be without end."""
    taken = list(itertools.islice(found, MOST + 1))
    if len(taken) > MOST:
        raise ValueError(
            f"search: {who} more than {MOST:,} {what}, of which each is traced: give fewer, or an"
            " iterable of those that are worth a try."
        )
    return taken


def _checked(config: object) -> Config:
    """The configuration as what a search keeps."""
    if isinstance(config, Mapping):
        return Values(cast("Mapping[str, object]", config))
    if not isinstance(config, Hashable):
        raise TypeError(
            f"search: the configuration {config!r:.60} cannot be hashed, so results could not be"
            " kept by it: use dicts, or a frozen dataclass."
        )
    return config


def _check_names(kernel_of: KernelOf, config: Config) -> None:
    """TypeError if `kernel_of` does not take a configuration; nothing is called."""
    try:
        signature = inspect.signature(kernel_of)
    except ValueError:  # a builtin has none
        return
    try:
        signature.bind(**config) if isinstance(config, Values) else signature.bind(config)
    except TypeError as error:
        raise TypeError(
            f"search: kernel_of{signature} cannot be called with {label(config)} ({error}): name"
            " the ranges as its parameters."
        ) from None


def kernel(kernel_of: KernelOf, config: Config) -> Callable[..., object]:
    """The kernel of a configuration."""
    return kernel_of(**config) if isinstance(config, Values) else kernel_of(config)


def fields(config: Config) -> dict[str, object]:
    """A configuration's values by name."""
    if isinstance(config, Mapping):
        return dict(cast("Mapping[str, object]", config))
    if dataclasses.is_dataclass(config):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if hasattr(config, "_asdict"):  # a named tuple
        return config._asdict()
    return {"config": config}


def label(config: Config) -> str:
    """A configuration in words: its values, without a dataclass's that are the defaults."""
    values = fields(config)
    if dataclasses.is_dataclass(config):
        usual = {field.name: field.default for field in dataclasses.fields(config)}
        values = {name: value for name, value in values.items() if value != usual[name]}
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "the default"


def starts(space: Ranked) -> list[Config]:
    """What a search begins with: the first configuration of each combination of the shapes."""
    if not space.shapes:
        return list(space.configs)
    names = [name for group in space.groups[: space.shapes] for name in group]
    found: dict[tuple[object, ...], Config] = {}
    for config in space.configs:
        values = fields(config)
        found.setdefault(tuple(values[name] for name in names), config)
    return list(found.values())


def neighbours(config: Config, space: Ranked) -> list[Config]:
    """The configurations that differ from one in one field, or in one group of fields.

    By single fields they come in the order of the space. By groups, the first neighbours of each
    group come first, so that a search that ends early has tried all groups.
    """
    mine = fields(config)
    if not space.groups:
        return [other for other in space.configs if len(_differing(mine, fields(other))) == 1]
    near: dict[int, list[Config]] = collections.defaultdict(list)
    for other in space.configs:
        names = _differing(mine, fields(other))
        differ = [i for i, group in enumerate(space.groups) if not names.isdisjoint(group)]
        if len(differ) == 1 or (differ[:1] == [0] and names <= {*space.groups[0], *space.follows}):
            near[differ[0]].append(other)
    turns = itertools.zip_longest(*near.values())
    return [other for turn in turns for other in turn if other is not None]


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> set[str]:
    """The names of the values of the other that differ."""
    return {name for name, value in other.items() if one.get(name) != value}
