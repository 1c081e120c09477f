"""The log of a table: listing, reading and following it, its history.

* ``table`` is the way in: snapshots, and commits one by one. Below it, ``listing`` knows which
  files there are, ``json_files``, ``checkpoints`` and ``checksums`` read them, ``snapshot_files``
  streams a snapshot's data files, and ``damaged_files`` finds ways round damage. ``listed`` is a
  log that was listed once, for reads that end.
* ``follow`` is the loop of a feed: ``cursor`` decides what comes next, ``questions`` are what the
  two exchange, ``readers`` and ``ahead_reader`` fetch the commits.
* ``starts``, ``times`` and ``same_table`` find and check where a read begins; ``history`` lists.
"""
