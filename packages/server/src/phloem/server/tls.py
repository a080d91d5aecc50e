"""TLS for the server: the certificate that it shows, and those that it wants of clients.

Owns the context that Python's `ssl` makes of the options; which of these fit together is said in
`phloem.server.http_config`.
"""

from __future__ import annotations

import ssl
from pathlib import Path

HANDSHAKE_SECONDS = 10.0
"""Within which a client must have agreed on the encryption."""


def server_context(
    certfile: str, keyfile: str | None, ca_certs: str | None, client_certs: str
) -> ssl.SSLContext:
    """What the server needs to speak TLS, 1.2 or later.

    Args:
        certfile: its certificate, with those that lead to the root behind it, as PEM.
        keyfile: the private key, without a password; None: it is in `certfile`.
        ca_certs: whose certificates clients may show; None: they are not asked for one.
        client_certs: "required" or "optional", where there are `ca_certs`.

    Raises:
        ValueError: a file cannot be read or is no such thing, or key and certificate differ.
    """
    for name, file in (
        ("ssl_certfile", certfile),
        ("ssl_keyfile", keyfile),
        ("ssl_ca_certs", ca_certs),
    ):
        _check_readable(name, file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # The server must not wait for somebody to type a password.
        context.load_cert_chain(certfile, keyfile, password=_no_password)
        if ca_certs is not None:
            context.load_verify_locations(ca_certs)
            required = client_certs == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except ssl.SSLError as error:
        raise ValueError(
            f"the files of TLS do not fit ({error.reason or 'no PEM'}): give ssl_certfile a "
            "certificate as PEM, ssl_keyfile its own key without a password, and ssl_ca_certs "
            "certificates"
        ) from error
    return context


def _check_readable(name: str, file: str | None) -> None:
    if file is None:
        return
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{name} {file} cannot be read ({error.strerror})") from error


def _no_password() -> str:
    return ""
