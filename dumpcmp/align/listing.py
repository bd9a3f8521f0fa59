"""What one archive holds, as its index tells: values, calls, and which value is which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import Call, Record


@dataclass(frozen=True)
class Listing:
    """The values of a run, each once for every rank that has it, and its calls."""

    values: Mapping[Key, tuple[Record, ...]]
    calls: Mapping[Site, Call] = field(default_factory=dict)
    num_ranks: int = 1

    @cached_property
    def sites(self) -> dict[Site, list[Key]]:
        """The values of each call; calls in order of execution, models in order of appearance."""
        found: dict[Site, list[Key]] = defaultdict(list)
        for key in self.values:
            found[key.site].append(key)
        for site, call in self.calls.items():
            if call.kernel:  # fused: it has no values of its own, but it ran
                found.setdefault(site, [])
        models = {model: i for i, model in enumerate(dict.fromkeys(site.model for site in found))}

        def where(item: tuple[Site, list[Key]]) -> tuple[int, int, int]:
            site, keys = item
            order = self.record(keys[0]).order if keys else self.calls[site].order
            return models[site.model], site.step, order

        return dict(sorted(found.items(), key=where))

    @cached_property
    def links(self) -> dict[Key, Key]:
        """Each value that is an earlier one of its run on every rank, and that one."""
        return {
            key: records[0].same_as
            for key, records in self.values.items()
            if records[0].same_as is not None
            and all(record.same_as == records[0].same_as for record in records[1:])
        }

    def origins(self, key: Key) -> list[Key]:
        """The earlier values that it is, of which ranks may each have another."""
        found = dict.fromkeys(record.same_as for record in self.values.get(key, ()))
        return [first for first in found if first is not None]

    def record(self, key: Key) -> Record:
        """The Record of a value on the lowest rank that has it."""
        return self.values[key][0]

    def call(self, key: Key) -> Call | None:
        """The call that gave or took a value."""
        return self.calls.get(key.site)

    def is_batched(self, site: Site) -> bool:
        """Whether a call saw single examples of what is recorded: inside of torch.func.vmap."""
        return any(self.record(key).is_batch for key in self.sites.get(site, ()))

    def first(self, key: Key) -> Key:
        """The first appearance in the run of the value that `key` is."""
        return self.links.get(key, key)
