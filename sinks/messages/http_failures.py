"""Why a sink's HTTP request had no answer."""

from __future__ import annotations

import aiohttp

from tailer.errors import ConfigError, TailerError, TransientError
from tailer.network.reach import explain_unreached


def explain_http_failure(where: str, e: Exception) -> TailerError:
    """Return the error of a request to ``where``, the address in the sink's option ``url``."""
    if isinstance(e, aiohttp.ClientConnectorCertificateError):
        return ConfigError(
            f"{where}: the certificate is not trusted ({e.certificate_error}); set ca_file, or "
            "mend the server"
        )
    if (no_way := explain_unreached(where, e, "the option 'url'")) is not None:
        return no_way
    return TransientError(f"{where} does not answer ({str(e) or type(e).__name__})")
