"""`dibs exchange`: retention by hand, and receipts that anyone with the secrets can check. Contract 8."""

import io
import json
from collections.abc import Callable

import msgspec
import pytest

from deploy.cli import main
from models import settings
from models.rules.intents import ProposeWork, PublishWork
from tests.exchange import Exchange, terms_of
from tests.pipeline import Pipeline
from tests.stack import SECRET_KEYS
from web.work_answers import Receipts

Command = Callable[..., tuple[int, str, str]]


class Stdin(io.BytesIO):
    """What is typed."""

    name = "<stdin>"


@pytest.fixture
def dibs(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("DIBS_DATABASE_URL", pipeline.database.service_url)
    monkeypatch.setenv("DIBS_REDIS_URL", pipeline.redis_url)
    monkeypatch.setenv("DIBS_SECRET_KEYS", SECRET_KEYS)

    def call(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Stdin(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return call


def test_a_purge_clears_what_is_due_and_no_row(pipeline: Pipeline, dibs: Command) -> None:
    exchange = Exchange(pipeline)
    works = [exchange.publish() for _ in range(30)]
    exchange.do(exchange.provider, ProposeWork(work_id=works[0], terms=terms_of(), expected_opportunity_revision=1))
    assert json.loads(dibs("exchange", "purge", "--all", "--json")[1]) == {"due": 0, "cleared": 0}
    exchange.clock("2026-09-20 20:00:00+00")
    assert json.loads(dibs("exchange", "purge", "--json")[1]) == {"due": 31, "cleared": 25}
    left = pipeline.database.rows("SELECT id FROM work_proposals WHERE terms IS NOT NULL")
    assert len(left) == 1, "proposals come after opportunities"
    assert dibs("exchange", "purge", "--all")[:2] == (0, "6 objects were due, 6 are cleared\n")
    assert pipeline.database.value("SELECT count(*) FROM work_opportunities WHERE terms IS NULL") == 30
    assert pipeline.database.value("SELECT count(*) FROM work_slots") == 31


def test_a_receipt_is_genuine_or_not(pipeline: Pipeline, dibs: Command) -> None:
    exchange = Exchange(pipeline)
    reference = exchange.do(exchange.requester, PublishWork(terms=terms_of()))
    receipt = msgspec.to_builtins(Receipts(settings.load()).receipt(reference))
    assert dibs("exchange", "verify-receipt", "-", stdin=json.dumps(receipt).encode())[0] == 0
    enveloped = json.dumps({"receipt": receipt, "operationRevision": 1}).encode()
    status, out, _ = dibs("exchange", "verify-receipt", "-", "--json", stdin=enveloped)
    assert (status, json.loads(out)["genuine"]) == (0, True)
    for name in receipt:
        forged = {**receipt, name: "work_proposal" if name == "kind" else receipt[name][:-1] + "0"}
        if forged != receipt:
            status, _, err = dibs("exchange", "verify-receipt", "-", stdin=json.dumps(forged).encode())
            assert (status, err.count("\n")) == (1, 1), name
    for nonsense in (b"", b"[]", b'{"receipt": 1}'):
        assert dibs("exchange", "verify-receipt", "-", stdin=nonsense)[0] == 1
