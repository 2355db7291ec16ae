"""What the libraries for remote files raise, as one sentence and what to do.

Their own texts hold whole addresses, with signatures, and what the server sent. Only the kind of the error, the status
and the name that S3 gives an error are taken from them.
"""

from __future__ import annotations

import re

from headrace.data.corpus.remote.store import CHANGED, Failure

NOT_FOUND = "no such file (404)"
_STATUS = re.compile(r"status code: (\d{3})|(?:^|\s)(\d{3}) (?:Client|Server) Error|Error code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")

_CREDENTIALS = (
    "Renew them where they come from (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN,"
    " GOOGLE_APPLICATION_CREDENTIALS, `hf auth login`, or a new signed address), and run again: what is sealed is kept"
)
_ALLOWED = (
    "Check the address, and that the credentials in the environment may read it; for a public bucket without"
    " credentials set AWS_SKIP_SIGNATURE=true"
)
_BY_CODE = {
    "ExpiredToken": ("the credentials have expired", _CREDENTIALS),
    "TokenRefreshRequired": ("the credentials have expired", _CREDENTIALS),
    "InvalidAccessKeyId": ("the credentials are not known there", _CREDENTIALS),
    "SignatureDoesNotMatch": ("the credentials do not match", _CREDENTIALS),
    "InvalidToken": ("the credentials are not valid", _CREDENTIALS),
    "RequestTimeTooSkewed": ("this machine's clock is wrong", "Set the clock, and run again"),
    "NoSuchBucket": ("there is no such bucket", "Check its name, and that it was not deleted; then run again"),
    "PermanentRedirect": ("the bucket is in another region", "Set AWS_REGION to its region"),
    "AuthorizationHeaderMalformed": ("the bucket is in another region", "Set AWS_REGION to its region"),
}
_BY_STATUS = {
    401: ("access needs credentials, or those given are not valid (401)", _CREDENTIALS),
    403: ("access is denied (403)", _ALLOWED),
    404: (NOT_FOUND, "Check the address"),
    405: ("the server does not let this be read (405)", "Check the address"),
    410: ("no longer there (410)", "Check the address"),
    412: (CHANGED.what, CHANGED.remedy),
    416: (CHANGED.what, CHANGED.remedy),
}
_NO_RANGES = Failure(
    "the server sends whole files only, not parts of them, and this one is too large for that",
    "Download it, and name the file",
)
_REDIRECT = Failure(
    "the server sends us on to an address of another kind (from https to http, or to a file), which is not followed",
    "Name the address that it leads to, if you trust it",
)
_TLS = Failure(
    "no secure connection: the server's certificate is not valid for this machine",
    "Check the address and the clock; for a private authority set SSL_CERT_FILE to its certificates",
)
_RUN_AGAIN = "Check the network and the server, and run again: what is sealed is kept"


def failure_of(problem: Exception) -> Failure:
    """Return an error of a library as one attempt that failed."""
    if isinstance(problem, Failure):
        return problem
    text = f"{problem}"
    code = _CODE.search(text)
    if code and code[1] in _BY_CODE:
        return Failure(*_BY_CODE[code[1]])
    status = _status(problem, text)
    if status:
        return _by_status(status)
    if isinstance(problem, FileNotFoundError):
        return Failure(*_BY_STATUS[404])
    if isinstance(problem, PermissionError):
        return Failure(*_BY_STATUS[403])
    if "RangeNotSupported" in text or "Range request not supported" in text:
        return _NO_RANGES
    if re.search(r"[Cc]ertificate|CERTIFICATE|InvalidContentType|SSLError|HandshakeFail|CorruptMessage", text):
        return _TLS
    if re.search(r"URL scheme is not allowed|BadScheme|TooManyRedirects|too many redirects", text):
        return _REDIRECT
    if "Content-Length" in text or "MissingContentLength" in text:
        return Failure("the server does not say how large the file is", "Download it, and name the file")
    if re.search(r"[Cc]redential|169\.254\.169\.254|metadata\.google", text):
        return Failure("no credentials were found", _ALLOWED)
    return Failure(_connection(problem, text), _RUN_AGAIN, may_pass=True)


def _status(problem: Exception, text: str) -> int:
    """Return the status of the answer; 0 if there was none."""
    answer = getattr(problem, "response", None)
    if getattr(answer, "status_code", None):
        return int(answer.status_code)  # type: ignore[union-attr]
    found = _STATUS.search(text)
    return int(next(filter(None, found.groups()))) if found else 0


def _by_status(status: int) -> Failure:
    if status in _BY_STATUS:
        return Failure(*_BY_STATUS[status])
    if status >= 500 or status in (408, 425, 429):
        reason = "asks for fewer requests" if status == 429 else "fails"
        return Failure(f"the server {reason} ({status})", _RUN_AGAIN, may_pass=True)
    if 300 <= status < 400:
        return _REDIRECT
    return Failure(f"the server refuses the request ({status})", "Check the address and the credentials")


def _connection(problem: Exception, text: str) -> str:
    """Describe a connection that was not made, or broke."""
    is_timeout = isinstance(problem, TimeoutError) or "Timeout" in type(problem).__name__
    if is_timeout or re.search(r"kind: Timeout|TimedOut|timed out", text):
        return "the server does not answer, or stopped sending"
    if re.search(r"dns|resolve|Name or service", text):
        return "there is no such host, or no network"
    if re.search(r"kind: Connect|refused|ConnectError", text):
        return "no connection to the server"
    if re.search(r"Interrupted|IncompleteBody|UnexpectedEof|reset|closed|peer", text):
        return "the server cut the connection"
    return f"reading failed ({type(problem).__name__})"
