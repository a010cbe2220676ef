"""Why nothing was answered, in one sentence: what requests and urllib3 raise, told by the classes of it and of what caused it.

Their own texts are not shown: they may hold the password of a proxy.
"""

from __future__ import annotations

import urllib.parse

from repro_env.io.answer import LATER, chain
from repro_env.model import redact
from repro_env.model.errors import NetworkError

_MALFORMED = {"InvalidHeader", "InvalidURL", "InvalidSchema", "MissingSchema"}


def explained(error: BaseException, url: str) -> NetworkError:
    causes = list(chain(error))
    kinds = {kind.__name__ for one in causes for kind in type(one).__mro__}
    host = urllib.parse.urlsplit(url).netloc
    if kinds & {"ProxyError", "InvalidProxyURL", "ProxySchemeUnknown"} or "SOCKS" in str(error)[:200]:
        what, hint = (
            "the proxy does not let this through",
            "look at HTTPS_PROXY and NO_PROXY; a SOCKS proxy needs the package PySocks",
        )
    elif "SSLCertVerificationError" in kinds:
        if any("mismatch" in str(one).lower() for one in causes):
            what, hint = "its certificate is that of another host", "ask for it by the name that stands in its certificate"
        else:
            what = "its certificate cannot be verified"
            hint = f"put the certificate of its authority into /etc/docker/certs.d/{host}/ca.crt, or name it in SSL_CERT_FILE"
    elif "SSLError" in kinds:
        what, hint = (
            "no TLS connection can be made",
            "see whether that port speaks https, and which certificates it wants to be shown",
        )
    elif kinds & {"gaierror", "NameResolutionError", "LocationParseError"}:
        what, hint = "its host name is not known here", "look at the name, and at the network"
    elif "ConnectionRefusedError" in kinds:
        what, hint = "nothing listens there", "start that server, or look at the port"
    elif kinds & {"Timeout", "TimeoutError"}:
        what, hint = "did not answer in time", LATER
    elif kinds & _MALFORMED or not kinds & {"OSError", "HTTPError", "BaseHTTPError"}:
        what, hint = (
            "cannot be asked so: its address, or what it is to be asked with, is malformed",
            "look at the address and the credentials",
        )
    else:
        what, hint = "breaks the connection off", LATER
    return NetworkError(what, where=redact.url(url), hint=hint)


def is_passing(error: BaseException) -> bool:
    """Whether another try may do better: not for a certificate, a name that is not known, or a URL that is none."""
    kinds = {kind.__name__ for one in chain(error) for kind in type(one).__mro__}
    return "OSError" in kinds and not kinds & (_MALFORMED | {"SSLCertVerificationError", "gaierror", "NameResolutionError"})


def is_no_tls(error: BaseException) -> bool:
    """Whether what answered does not speak TLS, of an error in the first connection."""
    kinds = {kind.__name__ for one in chain(error) for kind in type(one).__mro__}
    if kinds & {"SSLCertVerificationError", "ConnectionRefusedError", "gaierror", "ConnectTimeout"}:
        return False
    return bool(kinds & {"SSLError", "ReadTimeout", "ConnectionResetError", "RemoteDisconnected", "ProtocolError"})
