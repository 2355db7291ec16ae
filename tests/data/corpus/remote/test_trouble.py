"""Servers that fail: what passes is waited for, what does not is one message, and nothing is lost or left behind."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.data.cache.build import Builder
from headrace.data.cache.open import open_or_create
from headrace.data.corpus.remote import remote_file
from headrace.data.corpus.remote.patience import Patience, use_patience
from headrace.data.corpus.remote.registry import close_stores
from headrace.data.corpus.sources import as_sources
from headrace.errors import CorpusError, HeadraceError, MissingExtraError, UsageError
from tests.conftest import make_text
from tests.data.corpus.remote.corpora import identity
from tests.data.corpus.remote.s3_server import S3Server
from tests.data.corpus.remote.web_server import Answer, Request, Sometimes, WebServer, web_server

TEXT = make_text(50_000, seed=9).encode()
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def text(web: WebServer) -> str:
    """The address of a text on the web server."""
    web.files["/corpus.txt"] = TEXT
    return f"{web.address}/corpus.txt"


@pytest.fixture
def local(tmp_path: Path) -> tuple[str, str, int]:
    """What the same text is on this disk."""
    (tmp_path / "corpus.txt").write_bytes(TEXT)
    return identity(hr.prepare(tmp_path / "corpus.txt", tokenizer="byte", out=tmp_path / "local"))


def fails(address: str, cache: Path, error: type[HeadraceError] = CorpusError) -> str:
    """Prepare a corpus that cannot be, and return the message; nothing may be left that looks finished."""
    with pytest.raises(error) as problem:
        hr.prepare(address, tokenizer="byte", out=cache)
    assert not (cache / "manifest.json").exists()
    assert not list(cache.glob("tmp/*"))
    message = str(problem.value)
    assert "secret" not in message
    assert "\n" not in message
    return message


def cut(_: Request, answer: Answer) -> None:
    answer.sent_bytes = len(answer.body) // 2


def stall(_: Request, answer: Answer) -> None:
    answer.sent_bytes, answer.pause_s = len(answer.body) // 2, 30.0


def truncate(_: Request, answer: Answer) -> None:
    answer.body = answer.body[:-10]


def claim_more(_: Request, answer: Answer) -> None:
    answer.headers["Content-Length"] = str(len(answer.body) + 10)
    answer.sent_bytes = len(answer.body)


def status(number: int) -> Callable[[Request, Answer], None]:
    def trouble(_: Request, answer: Answer) -> None:
        answer.status, answer.headers, answer.body = number, {}, b"secret"

    return trouble


def redirect(place: str) -> Callable[[Request, Answer], None]:
    def trouble(_: Request, answer: Answer) -> None:
        answer.status, answer.headers, answer.body = 302, {"Location": place}, b""

    return trouble


@pytest.mark.parametrize("trouble", [cut, stall, truncate, claim_more, status(500), status(503), status(429)])
def test_what_passes_is_waited_for(
    trouble: Callable[[Request, Answer], None], web: WebServer, text: str, tmp_path: Path, local: tuple[str, str, int]
) -> None:
    web.trouble = Sometimes(trouble, times=2)
    assert identity(hr.prepare(text, tokenizer="byte", out=tmp_path / "cache")) == local


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (cut, "cut the connection, 4 times in a row. Check the network"),
        (stall, "does not answer, or stopped sending, 4 times"),
        (truncate, "says another length than before, 4 times"),
        (claim_more, "says another length than before, 4 times"),
        (status(500), "the server fails (500), 4 times"),
        (status(401), "access needs credentials, or those given are not valid (401)"),
        (status(403), "access is denied (403)"),
        (status(404), "was removed while the corpus was being read"),
        (status(418), "refuses the request (418)"),
        (redirect("file:///etc/passwd"), "sends us on to an address of another kind"),
    ],
)
def test_what_does_not_pass_is_one_message(
    trouble: Callable[[Request, Answer], None], message: str, web: WebServer, text: str, tmp_path: Path
) -> None:
    web.trouble = Sometimes(trouble)
    began = time.monotonic()
    said = fails(text, tmp_path / "cache")
    assert said.startswith(f"{text}: ")
    assert message in said
    assert time.monotonic() - began < 10
    web.trouble = Sometimes(cut, times=1)
    hr.prepare(text, tokenizer="byte", out=tmp_path / "cache")  # the next start works


def test_a_cut_answer_is_continued_where_it_was_cut(web: WebServer, text: str, tmp_path: Path) -> None:
    web.files["/corpus.txt"] = 10 * TEXT
    web.trouble = Sometimes(cut, times=1)
    hr.prepare(text, tokenizer="byte", out=tmp_path / "cache")
    ranges = [request.headers.get("range", "") for request in web.requests if request.is_for_data]
    assert ranges[0] == ""  # the whole file
    begin = int(ranges[1].removeprefix("bytes=").partition("-")[0])
    assert 3 * len(TEXT) < begin <= 5 * len(TEXT)


def test_no_file_and_no_host(web: WebServer, tmp_path: Path) -> None:
    assert "no such file (404). Check the address" in fails(f"{web.address}/none.txt", tmp_path / "cache")
    assert "a web server does not list its files" in fails(f"{web.address}/", tmp_path / "cache", UsageError)
    assert "Patterns need a list of files" in fails(f"{web.address}/*.txt", tmp_path / "cache")
    assert "no connection to the server, 4 times" in fails("http://127.0.0.1:9/corpus.txt", tmp_path / "cache")
    assert "no such host, or no network" in fails("http://nowhere.invalid/corpus.txt", tmp_path / "cache")


def test_an_arrow_file_is_refused_by_name(web: WebServer, tmp_path: Path) -> None:
    web.files["/rows.arrow"] = b"ARROW1"
    assert "Copy the file here, or save it as .parquet" in fails(f"{web.address}/rows.arrow", tmp_path / "cache")


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("has_etags", [True, False])
def test_a_file_that_changes_while_it_is_read(has_etags: bool, web: WebServer, text: str, tmp_path: Path) -> None:
    web.has_etags = has_etags

    def change(request: Request, answer: Answer) -> None:
        if web.data_requests >= 3:  # several may be under way at once
            web.files["/corpus.txt"] = TEXT + b"one more line"

    web.trouble = change
    assert "changed while the corpus was being read. Run again" in fails(text, tmp_path / "cache")
    cache = hr.prepare(text, tokenizer="byte", out=tmp_path / "cache")
    assert cache.num_tokens == len(TEXT) + 13 + 1


def test_a_changed_file_is_noticed_at_the_next_start(web: WebServer, text: str, tmp_path: Path) -> None:
    hr.prepare(text, tokenizer="byte", out=tmp_path / "cache")
    web.files["/corpus.txt"] = TEXT[::-1]  # of the same size
    cache = hr.prepare(text, tokenizer="byte", out=tmp_path / "cache")
    assert bytes(cache.shards.tokens(cache.entry(0).shards[0])[:10].astype("uint8")) != TEXT[:10]


def test_servers_that_send_whole_files_only(
    web: WebServer, text: str, tmp_path: Path, local: tuple[str, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    web.has_ranges = False
    assert identity(hr.prepare(text, tokenizer="byte", out=tmp_path / "cache")) == local
    monkeypatch.setattr(remote_file, "PART_BYTES", 1000)
    assert "sends whole files only" in fails(text, tmp_path / "other")


def test_signed_addresses_are_used_but_never_shown(web: WebServer, text: str, tmp_path: Path, command: Command) -> None:
    def check_signature(request: Request, answer: Answer) -> None:
        if "signature=secret%2F1" not in request.path or request.method == "HEAD":
            status(403)(request, answer)

    web.trouble = check_signature
    signed = f"{text}?signature=secret%2F1"
    code, out, err = command("prepare", signed, "--tokenizer", "byte", "--out", tmp_path / "cache", "--json")
    assert code == 0, err
    assert "secret" not in out + err
    for path in (tmp_path / "cache").rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()
    code, out, err = command("prepare", f"{web.address}/x.txt?signature=secret", "--out", tmp_path / "cache")
    assert code == 1
    assert "secret" not in out + err
    code, out, err = command("config", f"data.sources={signed}", "--json")
    assert "secret" not in out + err
    with pytest.raises(UsageError, match="with other queries"):
        as_sources([{"path": [signed, f"{text}?id=2"]}])


def test_closing_does_not_wait_for_a_server_that_stalls(web: WebServer, text: str, tmp_path: Path) -> None:
    web.trouble = Sometimes(stall)
    with use_patience(Patience(stall_s=20.0)):
        cache = open_or_create(as_sources(text), "byte", tmp_path / "cache")
        builder = Builder(cache)
        builder.start()
        while not web.data_requests:
            time.sleep(0.01)
        began = time.monotonic()
        builder.close()
        assert time.monotonic() - began < 2
        assert builder.failure is None
    web.released.set()


class _WithoutObstore:
    """An importer that does not find obstore."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] == "obstore":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])


def test_missing_library_and_unknown_schemes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown kind of address. Did you mean s3://?" in fails("s4://bucket/a.txt", tmp_path / "cache", UsageError)
    assert "by its path alone" in fails("file:///etc/passwd", tmp_path / "cache", UsageError)
    with pytest.raises(CorpusError, match="is given as text, not as a Path"):
        hr.prepare(Path("s3://bucket/a.txt"), tokenizer="byte", out=tmp_path / "cache")
    for name in [name for name in sys.modules if name.partition(".")[0] == "obstore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_WithoutObstore, *sys.meta_path])
    assert "pip install 'headrace[remote]'" in fails("s3://bucket/a.txt", tmp_path / "cache", MissingExtraError)


# S3


def test_s3_refusals(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.make_bucket("refusals").put("a.txt", TEXT)
    cache = tmp_path / "cache"
    assert "no such file or folder" in fails("s3://refusals/none.txt", cache)
    assert "no file matches this pattern" in fails("s3://refusals/*.md", cache)
    assert "there is no such bucket. Check its name" in fails("s3://no-such-bucket/a.txt", cache)
    assert "a pattern begins after the name of the bucket" in fails("s3://ref*/a.txt", cache, UsageError)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    close_stores()
    assert "the credentials do not match" in fails("s3://refusals/a.txt", cache)


def test_s3_credentials_that_expire(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ENDPOINT_URL": web.address, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    web.files["/bucket/a.txt"] = TEXT

    def expire(request: Request, answer: Answer) -> None:
        if request.is_for_data:
            answer.status, answer.body = 400, b"<Error><Code>ExpiredToken</Code><Message>secret</Message></Error>"

    web.trouble = expire
    assert "the credentials have expired. Renew them" in fails("s3://bucket/a.txt", tmp_path / "cache")
    web.trouble = lambda request, answer: None
    hr.prepare("s3://bucket/a.txt", tokenizer="byte", out=tmp_path / "cache")


def test_s3_objects_that_change_and_buckets_that_vanish(s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.make_bucket("vanishing")
    bucket.put("a.txt", TEXT)
    cache = open_or_create(as_sources("s3://vanishing/a.txt"), "byte", tmp_path / "cache")
    bucket.put("a.txt", TEXT[::-1])
    with Builder(cache) as builder, pytest.raises(CorpusError, match=r"a.txt: changed while the corpus was being read"):
        builder.wait()
    cache = open_or_create(as_sources("s3://vanishing/a.txt"), "byte", tmp_path / "cache")
    s3.remove_bucket("vanishing")
    with Builder(cache) as builder, pytest.raises(CorpusError, match=r"was removed while|no such bucket"):
        builder.wait()
    assert not (tmp_path / "cache" / "manifest.json").exists()


# TLS


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost that nobody trusts, with its key in the same file."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    names += ["-addext", "basicConstraints=critical,CA:FALSE"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "certificate.pem"


def test_tls(certificate: Path, web: WebServer, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.parent / "key.pem")
    cache = tmp_path / "cache"
    with web_server(context) as secure:
        secure.files["/corpus.txt"] = TEXT
        address = f"{secure.address}/corpus.txt"
        assert "certificate is not valid for this machine" in fails(address, cache)
        plain = web.address.replace("http://", "https://")
        assert "no secure connection" in fails(f"{plain}/corpus.txt", cache)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        close_stores()
        secure.trouble = redirect(text)
        assert "from https to http" in fails(address, cache)
        assert not web.data_requests
        secure.trouble = lambda request, answer: None
        hr.prepare(address, tokenizer="byte", out=cache)


def test_no_thread_is_left_waiting(web: WebServer, text: str, tmp_path: Path) -> None:
    hr.prepare(text, tokenizer="byte", out=tmp_path / "cache")
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("headrace-fetch"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-look")]
