"""Values of partitioned runs, put back together and held against golden.

The way of a value: what the ranks hold of it (`held`), what was recorded of its layout and what the
user declared (`declared`) make the Shards of the ranks. Where they say all, `unshard` makes a Plan
of Tiles from them, by the arithmetic of `regions`, and carries it out on the elements. Where they
do not, `solve` tries plans until one gives the other side's value. `assemble` chooses between these
ways, for both sides, and says on which Basis the whole value rests; where the whole differs from
golden, `culprits` says which ranks do. `deliveries` checks collectives, which golden has not, by
what the ranks gave.
"""
