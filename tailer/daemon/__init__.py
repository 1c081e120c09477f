"""Many feeds in one process: supervision, control, metrics and console.

`tailer run` comes here from :mod:`tailer.cli.services`, by way of run, supervisor (a task for each
feed) and runner (which holds the feed's offset and obeys orders), and leaves by
:func:`tailer.feed.run.run_feed`. The :class:`tailer.feed.run.Feed` is made by assembly.
"""
