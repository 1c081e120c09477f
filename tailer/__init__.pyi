# The types of what is loaded on first use.

from tailer import changes as changes
from tailer import deltalog as deltalog
from tailer import errors as errors
from tailer import feed as feed
from tailer import settings as settings
from tailer import sink as sink
from tailer import spark as spark
from tailer import testing as testing
from tailer.api.functions import Batch as Batch
from tailer.api.functions import Changes as Changes
from tailer.api.functions import Cursor as Cursor
from tailer.api.functions import Rows as Rows
from tailer.api.functions import Tail as Tail
from tailer.api.functions import history as history
from tailer.api.functions import read as read
from tailer.api.functions import snapshot as snapshot
from tailer.api.functions import tail as tail

__version__: str

__all__ = [
    "Batch",
    "Changes",
    "Cursor",
    "Rows",
    "Tail",
    "__version__",
    "changes",
    "deltalog",
    "errors",
    "feed",
    "history",
    "read",
    "settings",
    "sink",
    "snapshot",
    "spark",
    "tail",
    "testing",
]
