"""What `jnp.where` leaves out of a value that a kernel has read, by a mask of indices.

The model. Of `jnp.where(index < end, value, other)`, with the `index` on one axis, what `value` has
from `end` on reaches nothing. So it counts as not read, if nothing else uses the value. Not
covered: other masks, and other functions such as `lax.select`.
"""

from collections import Counter

from pallascope.tracing.jaxprs import Atom, Eqn, Jaxpr
from pallascope.tracing.source import is_of_jax


def kept(jaxpr: Jaxpr) -> dict[int, tuple[int, Atom]]:
    """By the id of a value of which only `jnp.where` takes a part: its axis and the part's end."""
    named = [eqn for eqn in jaxpr.eqns if eqn.params.get("name") == "_where"]
    if not (wheres := [eqn for eqn in named if is_of_jax(eqn.params["jaxpr"].jaxpr.debug_info)]):
        return {}
    uses = Counter(id(atom) for eqn in jaxpr.eqns for atom in eqn.invars)
    uses.update(map(id, jaxpr.outvars))
    made: dict[int, dict[str, Eqn]] = {
        id(var): {eqn.primitive.name: eqn} for eqn in jaxpr.eqns for var in eqn.outvars
    }

    def maker(atom: Atom, name: str) -> Eqn | None:
        return made.get(id(atom), {}).get(name)

    def uncast(atom: Atom) -> Atom:
        while uses[id(atom)] == 1 and (eqn := maker(atom, "layout_cast")):
            (atom,) = eqn.invars
        return atom

    found: dict[int, tuple[int, Atom]] = {}
    for mask, value, *_ in (eqn.invars for eqn in wheres):
        value, test = uncast(value), maker(mask, "lt")
        start = maker(uncast(test.invars[0]), "iota") if test else None
        if test and start and not test.invars[1].aval.shape and uses[id(value)] == 1:
            found[id(value)] = start.params["dimension"], test.invars[1]
    return found
