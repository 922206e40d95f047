"""TLS for the control channel, with certificates of the user's.

Both sides show a certificate that the authority has signed. Host names are not checked: workers
know the controller by whatever address Spark gives them, which is seldom what a certificate says,
and inside the channel the peer proves that it knows the job's secret, which says more than a name.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from fries.errors import TlsError


@dataclass(frozen=True)
class Tls:
    """Files in PEM format, on the driver and on every worker, under the same paths.

    Relative paths count from the working folder of the process that reads them, which is where
    ``spark-submit --files`` puts files on workers.
    """

    certificate: str | os.PathLike[str]
    """What this side shows, with any certificates between it and the authority."""
    key: str | os.PathLike[str]
    """Private key of the certificate, without a password."""
    authority: str | os.PathLike[str]
    """Certificates of those who may sign what the other side shows."""

    def check(self) -> None:
        """Refuse files that are missing or do not fit each other: here, not in every worker."""
        server, client = self.context(server=True), self.context(server=False)
        try:
            _shake_hands(server, client)
        except ssl.SSLError as error:
            raise TlsError(
                f"a connection with the certificate {os.fspath(self.certificate)} would be refused "
                f"({_reason(error)}); have it signed by {os.fspath(self.authority)}, for servers "
                "and for clients, and see that it has not expired"
            ) from error

    def context(self, server: bool) -> ssl.SSLContext:
        """What one side of a connection needs."""
        protocol = ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        if server:
            context.num_tickets = 0  # sessions are never resumed
        for path in (self.certificate, self.key, self.authority):
            _refuse_unreadable(path)
        try:
            # without this, OpenSSL would ask for a password on the terminal, and wait
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except (ssl.SSLError, ValueError) as error:
            raise TlsError(
                f"{os.fspath(self.key)} is not the private key of {os.fspath(self.certificate)} "
                f"({_reason(error)}); give both as PEM files, the key without a password"
            ) from error
        try:
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            raise TlsError(
                f"{os.fspath(self.authority)} has no certificates of an authority "
                f"({_reason(error)}); give a PEM file"
            ) from error
        return context


def _refuse_unreadable(path: str | os.PathLike[str]) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise TlsError(
            f"{os.fspath(path)} cannot be read ({error.strerror}); the files of Tls must be on the "
            "driver and on every worker, under the same paths"
        ) from error


def _reason(error: Exception) -> str:
    """What OpenSSL says, without its source files."""
    return str(getattr(error, "verify_message", "") or getattr(error, "reason", "") or error)


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Connect the two sides in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_side=False),
        server.wrap_bio(up, down, server_side=True),
    ]
    while ends:  # each turn moves at least one of them on, or fails
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
