"""A simulator of the feed and its daemon: real code, simulated time, faults picked by a seed.

    python -m tests.simulation --hours 1      very many histories, on all cores
    python -m tests.simulation 4711           one history, told

A history is a table with a writer, one to three daemons that run one feed of it, and faults. All
chance comes from the seed, so the same seed gives the same history everywhere. After every step a
judge, who knows the table's model, holds what the sinks got and what was saved against the
promises of docs/reliability.md.

| module | what it has |
| --- | --- |
| loop | an event loop with simulated time, whose processes can be stopped and killed |
| world | chance, faults, requests, processes, the story |
| patches | what is replaced while a history runs: clocks, worker threads |
| bucket, disk | simulated stores: an object store, a local disk |
| offset_object | the object of an offset in the object store |
| model, writer | the table: what it means, and the real commits that say so |
| judge, orders | the promises; what an acknowledged order promises |
| sinks, daemons | the simulated sinks; the supervisor and its feed in each process |
| plan, history | a seed's parts and steps; one history from beginning to end |
| shrink, many | a failing history made short and told; many histories |

A new fault is a line in :data:`tests.simulation.world.FAULTS` and a call of
:meth:`World.fault` where it happens. A new operation of the writer is a method of
:class:`SimulatedTable` and a line in ``OPERATIONS``; another event is a method of :class:`Daemons`
and a line in ``ACTIONS``. A new sink is a double of its contract that gives what became visible to
:meth:`Target.take`. New lines change what every seed means.
"""
