"""The compiled mode: values out of the kernels that Inductor writes.

The way of a value, in the order of the files:

1. ``modes.traced``: dynamo hands over its graph. Its nodes that are ops get the names of an eager
   run, and a number each.
2. ``marks``: AOTAutograd traces the graph, node by node. The traced node of whatever an op takes
   or gives, and of its gradient, gets a Mark. Passes rewrite the graph; what takes the place of a
   marked node inherits its Marks.
3. ``written``: Inductor writes kernels for the post-grad graph. After each of them the scheduler
   tells which nodes' values now lie in which variable.
4. ``views``, ``tables``: a line is added that reads the variable, and a table at the end of the
   generated code says which Marks that value, or which view of it, has.
5. ``twin``: the same graph is lowered once more, with every op's value stored. This code of the
   twin lies in the table. ``single_calls``: what it must not call again.
6. ``provenance`` does 1 to 5 at the right moment: it stands in for functions of Inductor's, and
   keeps tapped code apart in caches.
7. ``generated``, ``twin``: the code runs. Its lines hand over tensors, which are recorded under
   the keys that their Marks stand for in this step. Then the twin runs; what it shows of kernels
   that it agrees with is recorded too.
8. ``compiled``: the captures that all this serves, of programs and as a torch.compile backend.

The words:

- *op*: an op of dynamo's graph, by its number there; *node*: of whatever graph is being spoken of.
- *Mark*: "this value is that slot of that op"; a value may have several.
- *View*: one step from a stored value to what an op has of it, which computes nothing.
- *reading*: a chain of Views, and the Marks of what comes out; *line*: the readings of a variable.
- *kernel*: of generated code, and which call of it; an *extern* one is called, not generated.
- *stored*: a kernel leaves the value in memory; *hidden*: it does not, and only its twin shows it.
- *proof*: a stored value that a twin must repeat, bit for bit, to be trusted with that kernel.
- *Execution*: one run of generated code; *Tapping*: all of them while a capture lasts.
"""
