"""Weights that several stages of a pipeline share: each is a parameter of one stage, its owner.

At the begin of a step the others get a copy on their devices. At its end, after the last gradient of a weight, the
gradients go to the owner and add up in the order of stages: the same bits whatever the schedule's order.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Sharding

from pathways import _reshard
from pathways._errors import PathwaysError
from pathways._stage import moved

Name = tuple[int, str]  # a stage, and the name of one of its parameters


@jax.jit
def _sum(parts: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: functools.reduce(operator.add, leaves), *parts)


class Tied:
    """Which parameters of stages are another stage's.

    tied: a stage's name → the owner's.
    params: of each stage, in which the owners' names are, and the others are not.
    everywhere: for each stage, the sharding in which all of its devices have all of an array.
    """

    def __init__(self, tied: Mapping[Name, Name], params: Sequence[Any], everywhere: Sequence[Sharding]):
        self._tied, self._everywhere = dict(sorted(tied.items())), everywhere
        for (stage, name), (owner, owned) in self._tied.items():
            for number in (stage, owner):
                if not 0 <= number < len(params) or not isinstance(params[number], dict):
                    raise PathwaysError(
                        "INVALID_ARGUMENT",
                        f"tied names stage {number}; expected one of {len(params)} stages, whose params are a dict",
                    )
            if stage == owner or name in params[stage]:
                raise PathwaysError(
                    "INVALID_ARGUMENT",
                    f"the parameter {name!r} of stage {stage} is tied, and also in that stage's params; expected it"
                    f" only in those of its owner, stage {owner}",
                )
            if owned not in params[owner]:
                raise PathwaysError(
                    "INVALID_ARGUMENT", f"stage {owner} has no parameter {owned!r}; expected one of {[*params[owner]]}"
                )

    def filled(self, params: Sequence[Any]) -> list[Any]:
        """Returns each stage's parameters with those that others own."""
        params = list(params)
        own = list(params)
        for (stage, name), (owner, owned) in self._tied.items():
            params[stage] = params[stage] | {name: moved(own[owner][owned], self._everywhere[stage])}
        return params

    def gathered(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns each stage's gradients: an owner's are sums, and what others own is left out."""
        gradients = list(gradients)
        shares: dict[Name, dict[int, list[Any]]] = {}  # owner → stage → its gradients
        for (stage, name), (owner, owned) in self._tied.items():
            of = shares.setdefault((owner, owned), {owner: [gradients[owner][owned]]})
            of.setdefault(stage, []).append(gradients[stage][name])
            gradients[stage] = {key: g for key, g in gradients[stage].items() if key != name}
        for (owner, owned), of in shares.items():
            like = jax.tree.map(lambda g: g.sharding, gradients[owner][owned])
            parts = [jax.tree.map(_reshard.reshard, g, like) for stage in sorted(of) for g in of[stage]]
            gradients[owner] = gradients[owner] | {owned: _sum(parts)}
        return gradients
