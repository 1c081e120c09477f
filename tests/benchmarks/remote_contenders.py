"""The programs that reading from S3 is measured against, each run by itself in a fresh process.

    python -m tests.benchmarks.remote_contenders deltalake ADDRESS OPTIONS LAST OUTPUT
    python -m tests.benchmarks.remote_contenders get URL OUTPUT

The first writes load_cdf of the versions 1 to LAST as an Arrow IPC file, the second the bytes of
one object as they come.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from urllib.request import urlopen


def deltalake(address: str, options: str, last: int, output: Path) -> None:
    """Stream load_cdf into the file."""
    import pyarrow as pa
    from deltalake import DeltaTable

    table = DeltaTable(address, storage_options=json.loads(options))
    feed = table.load_cdf(starting_version=1, ending_version=last)
    reader = pa.RecordBatchReader.from_stream(feed)
    with pa.OSFile(str(output), "wb") as file, pa.ipc.new_file(file, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def get(url: str, output: Path) -> None:
    """Write what one GET answers to the file."""
    with urlopen(url) as answer, output.open("wb") as file:  # noqa: S310 - the benchmark's server
        shutil.copyfileobj(answer, file, 1024 * 1024)


def main() -> None:
    """Run what the first argument names."""
    match sys.argv[1:]:
        case ["deltalake", address, endpoint, last, output]:
            deltalake(address, endpoint, int(last), Path(output))
        case ["get", url, output]:
            get(url, Path(output))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
