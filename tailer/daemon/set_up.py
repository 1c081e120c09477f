"""What every process that runs feeds begins with: its lock, its log, and what it warns of."""

from __future__ import annotations

import logging
from pathlib import Path

from tailer.config.feeds import Config
from tailer.daemon.assembly import lock_place
from tailer.files.durable import is_everyones
from tailer.native.parquet import native
from tailer.process.logs import set_up_logs


def set_up_process(config: Config) -> logging.Logger:
    """Lock the process's place, and return its log. Raises :class:`ConfigError` for a lock folder
    that can't be used."""
    lock_place(config)
    logger = set_up_logs(config.log_format, config.log_level)
    if isinstance(config.state, Path) and is_everyones(config.state):
        logger.warning(
            "daemon.state: every user may write to %s, and so replace offsets; chmod 700 it",
            config.state,
        )
    if native is None:
        logger.warning(
            "the decoder is not compiled: pyarrow decodes, slower, and a file that someone made to "
            "take much memory is not refused (see `tailer version --verbose`)"
        )
    return logger
