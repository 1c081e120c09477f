"""The same feed on Spark: a data source for any query, and the daemon's feeds as queries.

Nothing here decodes: the driver plans with :mod:`tailer.log.table` and :mod:`tailer.decode.plan`,
and the executors decode with :mod:`tailer.decode.rows`, as the daemon does.
"""
