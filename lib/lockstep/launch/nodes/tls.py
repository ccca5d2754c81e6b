"""TLS between hosts, with a certificate that is made for one notebook's `Nodes` alone.

Agents have it from the credentials and trust no other; whoever listens trusts whoever proves the
key.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ..errors import LaunchError

_REQUEST = (
    *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-sha256", "-days", "3650", "-subj", "/CN=lockstep"),
)
# X509_V_FLAG_NO_CHECK_TIME: the certificate is as old as the notebook, and hosts' clocks differ.
_NO_CHECK_TIME = 0x200000


def is_needed(address: str) -> bool:
    """Return whether what is sent there leaves this machine."""
    try:
        return not ip_address(address).is_loopback
    except ValueError:  # a name
        return address != "localhost"


def certificate() -> tuple[ssl.SSLContext, str]:
    """Make a certificate; returns the context of whoever listens, and the certificate as text.

    Python has no way to make one, so the program openssl does. Raises LaunchError without it.
    """
    openssl = shutil.which("openssl") or shutil.which("openssl", path=str(Path(sys.prefix) / "bin"))
    if openssl is None:
        raise LaunchError(
            "connections to other hosts are encrypted, and openssl, which makes the "
            "certificate, is not installed here: install it"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:  # for its owner alone
        key, made = Path(folder) / "key", Path(folder) / "certificate"
        command = [openssl, *_REQUEST, "-keyout", str(key), "-out", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LaunchError(f"openssl cannot make a certificate: {done.stderr.strip()}")
        context.load_cert_chain(made, key)
        return context, made.read_text()


def trust(made: str) -> ssl.SSLContext:
    """Return the context of whoever dials in. Raises ssl.SSLError for what is no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it has no name: it is the one in the credentials
    context.verify_flags = ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    context.load_verify_locations(cadata=made)
    return context


class TlsSocket:
    """A connected socket under TLS, as far as a `Channel` uses one.

    A record of TLS never holds the end of one message and the beginning of the next, because each
    is sent by itself: so what waits is in the kernel, where a selector sees it.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, patience: float):
        """Shake hands, for `patience` seconds at most.

        Raises OSError (ssl.SSLError, TimeoutError) for one who does not, or is not who is trusted.
        """
        sock.settimeout(patience)
        is_server = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self._tls = context.wrap_socket(sock, server_side=is_server)

    def recvmsg(self, most: int, *_: int) -> tuple[bytes, list[Any], int, None]:
        try:
            return self._tls.recv(most), [], 0, None
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as error:  # somebody has meddled with it
            raise ConnectionAbortedError(str(error)) from error

    def send(self, data: memoryview) -> int:
        """Send as much as it takes; what it could not send it must be given again, the same."""
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tls, name)
